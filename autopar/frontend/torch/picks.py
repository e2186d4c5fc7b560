"""What is known of masks and their rows while functions of torch are called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autopar.frontend.torch.origin import user_frame
from autopar.frontend.torch.selections import Rows, Selected, Selection
from autopar.frontend.torch.visits import Visits, place_of

Done = tuple[bool, Any]
"""Whether a function was called for rows, and what it returned then."""


class Picks:
    """The masks that select rows, and the parts of code that are run.

    Args:
        selected: What is known of rows.
        fixed: Returns the value of a tensor that nothing changes; None of others.

    Attributes:
        visits: The parts of code, which data may skip, that are run.
    """

    def __init__(self, selected: Selected, fixed: Callable[[Tensor], Tensor | None]) -> None:
        self.selected = selected
        self.fixed = fixed
        self.visits = Visits(selected)
        self._made: dict[int, tuple[Tensor, Selection]] = {}
        self._roots: dict[int, tuple[Tensor, object]] = {}
        self._run: object = None

    def begin(self) -> None:
        """Forgets what an earlier run of the code left."""
        if self._run is not self.selected.run:
            self._run = self.selected.run
            self.forget_masks()

    def forget_masks(self) -> None:
        """Forgets which masks are the same, as one of them may be written to."""
        self._made.clear()
        self._roots.clear()

    def keep(self, result: Tensor, mask: Tensor) -> None:
        """Notes that a tensor has the elements of a mask in their order."""
        kept = self._roots.get(id(mask))
        root = mask if kept is None else kept[1]
        self._roots[id(result)] = (result, root)
        self._roots.setdefault(id(mask), (mask, root))

    def valid(self, selection: Selection) -> Tensor:
        """Returns which rows are there, in the parts of code that are open now."""
        valid = selection.valid
        for part in self.selected.open:
            if part not in selection.within:
                valid = valid & part.entered
        return valid

    def selection(self, mask: Tensor) -> Selection | None:
        """Returns the places that a mask selects; None if their number is taken as it is."""
        if id(mask) in self._made:
            return self._made[id(mask)][1]
        if mask.numel() < 2 or self.selected.rows(mask) is not None:
            return None
        place = place_of(user_frame(sys._getframe(1)))
        if self.selected.denies(place) or self.fixed(mask) is not None:
            return None
        with self.selected.free(), torch.no_grad():
            valid = mask.detach().ne(0).reshape(-1).clone()
            for part in self.selected.open:
                valid = valid & part.entered
        kept = self._roots.get(id(mask))
        root = mask if kept is None else kept[1]
        within = tuple(self.selected.open)
        made = Selection(tuple(mask.shape), valid, place, root, within)
        self._made[id(mask)] = (mask, made)
        self.selected.found[place] = self.selected.found.get(place, 0) + 1
        self.selected.active = True
        return made

    def zeroed(self, tensor: Tensor, rows: Rows) -> Tensor:
        """Returns a tensor with zeros in the place of rows that aren't there."""
        valid = along(self.valid(rows.selection), tensor.ndim - rows.dim)
        return torch.where(valid, tensor, torch.zeros((), dtype=tensor.dtype))


def is_mask(given: Any) -> bool:
    """Whether something is a mask."""
    return isinstance(given, Tensor) and given.dtype == torch.bool and given.ndim > 0


def along(valid: Tensor, behind: int) -> Tensor:
    """Returns which rows are there with further dimensions behind."""
    return valid.reshape(-1, *[1] * (behind - 1))
