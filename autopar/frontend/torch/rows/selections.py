"""Rows that data select, as `h[mask]` and `torch.where(mask)` do: one for each place of a mask.

How many places a mask selects isn't known when a program is compiled. So there is a row for each
place of the mask, and what tells which of them are there (*valid*). That is right as long as rows
are computed apart from each other, and those that aren't there are left out where rows are put back
into what has other dimensions (see `picked`). Which tensors have such rows is followed op by op
(see `apart`). Code that does anything else with them is captured as if there were no such rows:
the number of rows is assumed to be the example's (see `masked`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from autopar.frontend.torch.conditions.cones import behind
from autopar.frontend.torch.rows.apart import Found, followed
from autopar.frontend.torch.rows.gradients import Skippable, gradient_node


class NotApart(BaseException):
    """Code does something with rows that isn't the same for more rows than there are.

    No code of a user's catches it: what was captured so far is thrown away.

    Args:
        place: The line that made the rows, or that may be skipped.
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


@dataclass(eq=False)
class Selection:
    """The places that a mask selects.

    Attributes:
        shape: That of the mask.
        valid: Whether each place is selected, in row-major order.
        place: The user's line.
        root: What is the same for masks of the same elements in the same order.
        within: The parts of code, which data may skip, that it was made in.
        some: Whether there are rows whatever the mask selects.
    """

    shape: tuple[int, ...]
    valid: Tensor
    place: str
    root: object
    within: tuple[Skippable, ...] = ()
    some: bool = False

    @property
    def rows(self) -> int:
        """The number of places."""
        return self.valid.shape[0]


@dataclass(frozen=True)
class Rows:
    """What is known of a tensor with rows.

    Attributes:
        selection: The places that the rows are of.
        dim: Along which dimension there is a row for each.
        axis: Of indices: the mask's dimension whose positions they are; None of other values.
        places: Whether they are the positions of all dimensions, beside each other.
    """

    selection: Selection
    dim: int
    axis: int | None = None
    places: bool = False


class Told(NamedTuple):
    """Who was told a number of rows.

    Attributes:
        by: The frame of the code that asked for it, and its instruction.
        place: The line that made the rows.
    """

    by: tuple[int, int]
    place: str


@dataclass
class Selected:
    """The rows of a run of the code, and where they are.

    Attributes:
        denied: Lines whose rows, or parts to skip, are captured as they are for the example; None
            for all lines.
        left_out: Positions that loops don't go to, as their bodies fail there: by line.
        found: Lines that made rows, each with how often.
        open: The parts of code, which data may skip, that are run.
        parts: All parts that were run so far.
        kept: Of tensors that rows were written into, where the gradient goes of what was there.
        told: Who was told a number of rows last, until a function of torch is called with it.
    """

    denied: frozenset[str] | None = frozenset()
    left_out: frozenset[tuple[str, int]] = frozenset()
    found: dict[str, int] = field(default_factory=dict)
    open: list[Skippable] = field(default_factory=list)
    parts: list[Skippable] = field(default_factory=list)
    kept: dict[Node, Node] = field(default_factory=dict)
    told: Told | None = None

    def __post_init__(self) -> None:
        self._rows = WeakIdKeyDictionary()
        self._within = WeakIdKeyDictionary()
        self._grown = WeakIdKeyDictionary()
        self._free = 0
        self._returned: tuple[Skippable, ...] | None = None
        self._safe = 0
        self.active = False
        self.run = object()
        self.failed: str | None = None
        self.visited: tuple[str, int] | None = None

    def denies(self, place: str) -> bool:
        """Whether a line is captured as it is for the example."""
        return self.denied is None or place in self.denied

    def begin(self) -> None:
        """Says that the code runs once more."""
        self.run = object()
        self.failed = None
        self.visited = None
        self.told = None
        self.found.clear()
        self.open.clear()
        self.parts.clear()
        self.kept.clear()
        self._free = self._safe = 0
        self._returned = None
        self._grown.clear()
        self.active = False

    @contextmanager
    def free(self) -> Iterator[None]:
        """Follows nothing within: what is computed there is known."""
        self._free += 1
        try:
            yield
        finally:
            self._free -= 1

    @contextmanager
    def returning(self, target: Tensor | None = None) -> Iterator[None]:
        """Follows nothing within, and what is made there may be read where its part is left.

        Args:
            target: What is written to. If that may not be read there, it may not afterwards either.
        """
        before = self._returned
        node = None if target is None else gradient_node(_whole(target))
        old = None if target is None else _root(target)
        self._returned = () if old is None else self._parts(old)
        try:
            with self.free():
                yield
        finally:
            self._returned = before
        if target is not None:
            self._keep(_whole(target), node)
        if target is not None and old is not None and self._parts(old):
            self._grown[_root(target)] = old

    def grow(self, made: Tensor, old: Tensor) -> None:
        """Notes that a tensor is what another one is, but for rows that were written."""
        if self.open:
            self._within[_root(made)] = tuple(self.open)
            self._grown[_root(made)] = _root(old)
            self._keep(made, gradient_node(old))

    def _keep(self, made: Tensor, old: Node | None) -> None:
        """Notes where the gradient goes of what was there before rows were written."""
        new = gradient_node(made)
        if self.open and new is not None and old is not None and new is not old:
            self.kept[new] = old

    def lets_out(self, made: Any, old: Tensor, part: Skippable) -> bool:
        """Lets code read a tensor where a part is left, if it took the place of `old` as it grew.

        Args:
            made: What has the name now that the tensor had.
            old: The fake tensor that was in its place before the part.
            part: The part.

        Returns:
            Whether it did, or can't be read there: else it isn't what it is if the part is skipped.
        """
        if not isinstance(made, Tensor):
            return False
        fake = root = _root(made)
        while fake is not old:
            fake = self._grown.get(fake, None)  # type: ignore[no-untyped-call]
            if fake is None:
                return part in self._parts(root)
        self._within[root] = tuple(each for each in self._parts(root) if each is not part)
        return True

    def _parts(self, fake: Tensor) -> tuple[Skippable, ...]:
        """Returns the parts that a fake tensor was made in, outside of which it may not be read."""
        found: tuple[Skippable, ...] = self._within.get(fake, ())  # type: ignore[no-untyped-call]
        return found

    @contextmanager
    def safe(self) -> Iterator[None]:
        """Follows ops that fail for some values, which are given others here."""
        self._safe += 1
        try:
            yield
        finally:
            self._safe -= 1

    def rows(self, tensor: Any) -> Rows | None:
        """Returns the rows of a tensor; None if it has none."""
        if not self.active or not isinstance(tensor, Tensor):
            return None
        found: Rows | None = self._rows.get(behind(tensor), None)  # type: ignore[no-untyped-call]
        return found

    def mark(self, tensor: Tensor, rows: Rows) -> Tensor:
        """Notes that a tensor has rows, and returns it."""
        self.active = True
        self._rows[behind(tensor)] = rows
        return tensor

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Follows an op.

        Raises:
            NotApart: If rows meet in it, or what may be skipped is read elsewhere.
        """
        if not self.active and not self.open:
            return
        leaves = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)
        ]
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, FakeTensor)]
        self._follow_parts(leaves, made)
        given = {id(leaf): self._rows[leaf] for leaf in leaves if leaf in self._rows}
        if self._free or not given or not made:
            return
        dims = {key: each.dim for key, each in given.items()}
        first = next(iter(given.values()))
        alike = all(same(each.selection, first.selection) for each in given.values())
        found = followed(func, args, kwargs, made, dims, first.selection.rows) if alike else None
        if found is None or (found.fails and not self._safe):
            if torch._C._current_graph_task_id() == -1:  # The backward pass may do what it likes.
                self.refuse(first.selection.place)
            return
        self._mark_made(made, found, list(given.values()))

    def _mark_made(self, made: Sequence[FakeTensor], found: Found, given: Sequence[Rows]) -> None:
        [first, *others] = given
        alone = found.moves and not others and made[0].numel() == first.selection.rows
        axis = first.axis if alone else None
        for tensor, dim in zip(made, found.dims, strict=True):
            if dim is not None:
                self._rows[tensor] = Rows(first.selection, dim, axis)

    def _follow_parts(self, read: Sequence[FakeTensor], made: Sequence[FakeTensor]) -> None:
        running = torch._C._current_graph_task_id() != -1
        for tensor in read:
            left = [each for each in self._parts(tensor) if each not in self.open]
            if left and not running:
                self.refuse(left[-1].place)
        parts = tuple(self.open) if self._returned is None else self._returned
        if parts and not running:
            for tensor in made:
                self._within[tensor] = parts

    def refuse(self, place: str) -> NoReturn:
        """Ends the capture of rows.

        Raises:
            NotApart: Always.
        """
        self.failed = place
        raise NotApart(place)

    def check(self, tensors: Sequence[Any]) -> None:
        """Checks what a run leaves.

        Raises:
            NotApart: If there are rows among it, or what may be skipped.
        """
        if self.failed is not None:  # Code may have caught what was raised then.
            raise NotApart(self.failed)
        if self.told is not None:
            raise NotApart(self.told.place)
        for tensor in tensors:
            if not isinstance(tensor, Tensor) or not (self.active or self._within):
                continue
            fake = behind(tensor)
            if fake in self._rows:
                raise NotApart(self._rows[fake].selection.place)
            if within := self._parts(fake):
                raise NotApart(within[-1].place)

    def asked(self, tensors: Sequence[Any], *, varies: bool) -> None:
        """Notes that code asks for values.

        Raises:
            NotApart: If they are of rows, or aren't there where a part is skipped.
        """
        if varies:
            self.check(tensors)


def same(one: Selection, other: Selection) -> bool:
    """Whether rows of two selections are the same."""
    return one is other or (one.root is other.root and one.within == other.within)


def _whole(tensor: Tensor) -> Tensor:
    """Returns the tensor that one is a view of, or itself."""
    return tensor._base if tensor._is_view() and tensor._base is not None else tensor


def _root(tensor: Tensor) -> Tensor:
    """Returns the fake tensor that one stands for, or that it is a view of."""
    return behind(_whole(tensor))
