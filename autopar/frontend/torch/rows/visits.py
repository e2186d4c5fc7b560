"""Parts of code that data may skip: run all the same, without an effect where they are skipped.

    for expert in hit.nonzero():         if mask.any():          if top_x.numel() == 0: continue

Such a part may only write rows back into other tensors: then, where it would be skipped, it writes
none of them. What else it computes must not be read outside of it (see `selections`), and neither
its lines nor what they call may do anything to Python's objects that later lines could see.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor

from autopar.frontend.torch.conditions.cones import behind
from autopar.frontend.torch.origin import place_of, user_frame
from autopar.frontend.torch.rows.gradients import Skippable, op_number
from autopar.frontend.torch.rows.parts import Part, loop_at, skipped_at
from autopar.frontend.torch.rows.selections import NotApart, Selected, Selection
from autopar.frontend.torch.stored.python_objects import Held, has_changed, objects_of


@dataclass(eq=False)
class _Visit:
    """A part that is run.

    Attributes:
        before: What names stood for that it binds, and the fake tensors behind that.
        objects: What it may change of Python's objects.
    """

    skippable: Skippable
    frame: FrameType
    part: Part
    before: Mapping[str, tuple[Tensor, Tensor]]
    objects: Sequence[Held]


class Visits:
    """The parts that are run now.

    Args:
        selected: What is known of rows.
    """

    def __init__(self, selected: Selected) -> None:
        self.selected = selected
        self.open: list[_Visit] = []

    def leave_left(self) -> None:
        """Ends the parts that the code has left."""
        if not self.open:
            return
        running = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        for visit in list(self.open):
            inside = visit.part.first <= visit.frame.f_lineno <= visit.part.last
            if visit.skippable not in self.selected.open:
                self.open.remove(visit)
            elif id(visit.frame) not in running or not inside:
                self._leave(visit)

    def enters(self, asked: Tensor) -> bool | None:
        """Returns what an `if` is told that asks a tensor; None if its body may have effects."""
        frame = user_frame(sys._getframe(1))
        place = place_of(frame)
        part = None if frame is None or self.selected.denies(place) else skipped_at(frame)
        if part is None or frame is None or not part.writes:
            return None
        with self.selected.returning():
            entered = asked.logical_not() if part.inverted else asked.clone()
        self._enter(entered, frame, part, place)
        return not part.inverted

    def skips(self, entered: Tensor, answer: bool, rows: str) -> bool:
        """Returns what an `if` is told that asks whether there are rows.

        Args:
            entered: Whether there are.
            answer: What it is told if so.
            rows: The line that made them.

        Raises:
            NotApart: If what it skips may have effects.
        """
        frame = user_frame(sys._getframe(1))
        place = place_of(frame)
        part = None if frame is None else skipped_at(frame, compared=True)
        # Rows must be what runs the body: it is what is told then.
        if part is None or frame is None or self.selected.denies(place) or answer == part.inverted:
            raise NotApart(rows)
        self._enter(entered, frame, part, place)
        return answer

    def visit(self, selection: Selection, shape: tuple[int, ...]) -> Iterator[Tensor]:
        """Yields the positions of a mask, each as if it were selected.

        Raises:
            NotApart: If the loop may have effects besides rows that it puts back.
        """
        frame = user_frame(sys._getframe(1))
        part = None if frame is None else loop_at(frame)
        if part is None or frame is None:
            raise NotApart(selection.place)
        return self._visited(selection, shape, frame, part)

    def _visited(
        self, selection: Selection, shape: tuple[int, ...], frame: FrameType, part: Part
    ) -> Iterator[Tensor]:
        for at in range(selection.rows):
            with self.selected.returning():
                entered = selection.valid.select(0, at)
            if (selection.place, at) in self.selected.left_out:
                # Assumed, as it is asked: the code fails for this position.
                if bool(entered):
                    raise NotApart(selection.place)
                continue
            position = torch.tensor(at).reshape(shape)
            visit = self._enter(entered, frame, part, selection.place)
            self.selected.visited = selection.place, at
            try:
                yield position
            finally:
                self._leave(visit)
            self.selected.visited = None

    def _enter(self, entered: Tensor, frame: FrameType, part: Part, place: str) -> _Visit:
        for visit in list(self.open):  # The same line again is another time.
            if visit.frame is frame and visit.part is part:
                self._leave(visit)
        bound = [(name, frame.f_locals[name]) for name in sorted(part.bound)]
        before = {name: (tensor, behind(tensor)) for name, tensor in bound}
        skippable = Skippable(entered, place, op_number())
        visit = _Visit(skippable, frame, part, before, objects_of(frame))
        self.open.append(visit)
        self.selected.open.append(skippable)
        self.selected.parts.append(skippable)
        return visit

    def _leave(self, visit: _Visit) -> None:
        visit.skippable.last = op_number()
        for name, (tensor, old) in visit.before.items():
            now = visit.frame.f_locals.get(name, tensor)
            if now is not tensor and not self.selected.lets_out(now, old, visit.skippable):
                self.selected.refuse(visit.skippable.place)
        with suppress(ValueError):
            self.open.remove(visit)
        with suppress(ValueError):
            self.selected.open.remove(visit.skippable)
        if any(map(has_changed, visit.objects)):
            self.selected.refuse(visit.skippable.place)
