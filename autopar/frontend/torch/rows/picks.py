"""What is known of masks and their rows while functions of torch are called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autopar.frontend.torch.conditions.cones import behind
from autopar.frontend.torch.conditions.counts import Count, count_in
from autopar.frontend.torch.origin import calling, place_of, user_frame
from autopar.frontend.torch.rows.selections import Rows, Selected, Selection, Told
from autopar.frontend.torch.rows.visits import Visits

Done = tuple[bool, Any]
"""Whether a function was called for rows, and what it returned then."""


class Picks:
    """The masks that select rows, and the parts of code that are run.

    Args:
        selected: What is known of rows.
        fixed: Returns the value of a tensor that nothing changes; None of others.

    Attributes:
        visits: The parts of code, which data may skip, that are run.
        joined: The places of rows beside others, by what they are made of.
    """

    def __init__(self, selected: Selected, fixed: Callable[[Tensor], Tensor | None]) -> None:
        self.selected = selected
        self.fixed = fixed
        self.visits = Visits(selected)
        self._made: dict[int, tuple[Tensor, Selection]] = {}
        self._roots: dict[int, tuple[Tensor, object]] = {}
        self.joined: dict[object, Selection] = {}
        self._run: object = None

    def begin(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Begins a call of a function.

        Raises:
            NotApart: If it isn't the one that was told a number of rows.
        """
        if self._run is not self.selected.run:  # Forgets what an earlier run of the code left.
            self._run = self.selected.run
            self.joined.clear()
            self._made.clear()
            self._roots.clear()
        if (told := self.selected.told) is not None:
            # Torch itself calls functions when it leaves what fails.
            self.selected.told = None
            if told.by != _instruction() or count_in((*args, *kwargs.values())) is None:
                self.selected.refuse(told.place)

    def tell(self, count: Count) -> None:
        """Notes who is told a number of rows.

        Raises:
            NotApart: If somebody else was told one and wasn't a function of torch.
        """
        by = _instruction()
        told = self.selected.told
        if told is not None and told.by != by:
            self.selected.refuse(told.place)
        self.selected.told = Told(by, count.rows.selection.place)

    def keep(self, result: Tensor, mask: Tensor) -> None:
        """Notes that a tensor has the elements of a mask in their order."""
        now = behind(result)
        self._roots[id(now)] = (now, self._root(mask))

    def _root(self, mask: Tensor) -> object:
        """Returns what is the same for masks of the same elements, as long as none is written."""
        now = behind(mask)
        return self._roots.setdefault(id(now), (now, object()))[1]

    def valid(self, selection: Selection) -> Tensor:
        """Returns which rows are there, in the parts of code that are open now."""
        valid = selection.valid
        for part in self.selected.open:
            if part not in selection.within:
                valid = valid & part.entered
        return valid

    def selection(self, mask: Tensor) -> Selection | None:
        """Returns the places that a mask selects; None if their number is taken as it is."""
        now = behind(mask)
        if id(now) in self._made:
            return self._made[id(now)][1]
        if mask.numel() < 2 or self.selected.rows(mask) is not None:
            return None
        place = place_of(user_frame(sys._getframe(1)))
        if self.selected.denies(place) or self.fixed(mask) is not None:
            return None
        with self.selected.free(), torch.no_grad():
            valid = mask.detach().ne(0).reshape(-1).clone()
            for part in self.selected.open:
                valid = valid & part.entered
        within = tuple(self.selected.open)
        made = Selection(tuple(mask.shape), valid, place, self._root(mask), within)
        self._made[id(now)] = (now, made)
        self.selected.found[place] = self.selected.found.get(place, 0) + 1
        self.selected.active = True
        return made

    def zeroed(self, tensor: Tensor, rows: Rows) -> Tensor:
        """Returns a tensor with zeros in the place of rows that aren't there."""
        valid = along(self.valid(rows.selection), tensor.ndim - rows.dim)
        return torch.where(valid, tensor, torch.zeros((), dtype=tensor.dtype))


def _instruction() -> tuple[int, int]:
    """Returns which instruction of Python's calls, outside of the compiler."""
    frame = calling(sys._getframe(1))
    return (0, 0) if frame is None else (id(frame), frame.f_lasti)


def along(valid: Tensor, behind: int) -> Tensor:
    """Returns which rows are there with further dimensions behind."""
    return valid.reshape(-1, *[1] * (behind - 1))
