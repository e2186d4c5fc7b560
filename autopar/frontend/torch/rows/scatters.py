"""Functions that scatter rows to places which were computed for each: those that are there.

A row that isn't there goes to one more place behind all others, which is left out of the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autopar.frontend.torch.rows.picks import Done, Picks, along
from autopar.frontend.torch.rows.selections import NotApart, Rows, same

_BESIDE = {
    Tensor.scatter_: torch.scatter,
    Tensor.scatter_add_: torch.scatter_add,
    Tensor.scatter_reduce_: torch.scatter_reduce,
}
"""Functions that write to their first argument, and what makes the same of it."""


def scatter(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `scatter`, `scatter_add` and `scatter_reduce` of rows along them."""
    given = dict(zip(("input", "dim", "index", "src", "reduce"), args, strict=False)) | kwargs
    target, dim, index, source = (given.pop(key, None) for key in ("input", "dim", "index", "src"))
    at = picks.selected.rows(index)
    if at is None or not isinstance(target, Tensor) or picks.selected.rows(target) is not None:
        return False, None
    rows = picks.selected.rows(source)
    apart = rows is not None and rows.dim == at.dim and same(rows.selection, at.selection)
    if not apart or not isinstance(dim, int) or dim % target.ndim != at.dim:
        raise NotApart(at.selection.place)
    call, inplace = _BESIDE.get(func, func), func in _BESIDE
    with picks.selected.returning(target if inplace else None):
        wide = _with_room(target, at.dim)
        made = call(wide, at.dim, _sent(picks, index, at, target.shape[at.dim]), source, **given)
        made = made.narrow(at.dim, 0, target.shape[at.dim])
        if inplace:
            target.copy_(made)
    if inplace:
        return True, target
    picks.selected.grow(made, target)
    return True, made


def put(picks: Picks, target: Tensor, index: Any, value: Any) -> bool:
    """Writes `target[places] = value`, where places were computed; returns whether it could."""
    at = picks.selected.rows(index)
    if at is None or index.ndim != 1 or index.dtype == torch.bool or not target.shape[0]:
        return False
    rows = picks.selected.rows(value)
    if rows is None:
        if isinstance(value, Tensor) and value.ndim == target.ndim and value.shape[0] != 1:
            return False
    elif rows.dim != 0 or value.ndim != target.ndim or not same(rows.selection, at.selection):
        return False
    with picks.selected.returning(target):
        wide = _with_room(target, 0)
        wide[_sent(picks, index, at, target.shape[0])] = value
        target.copy_(wide.narrow(0, 0, target.shape[0]))
    return True


def _with_room(target: Tensor, dim: int) -> Tensor:
    """Returns a copy of a tensor with one more place."""
    shape = [*target.shape[:dim], 1, *target.shape[dim + 1 :]]
    return torch.cat([target, target.new_zeros(shape)], dim)


def _sent(picks: Picks, index: Tensor, at: Rows, otherwise: int) -> Tensor:
    """Returns where rows go, with those that aren't there going elsewhere.

    Negative indices count from the end of what they are meant for.
    """
    valid = along(picks.valid(at.selection), index.ndim - at.dim)
    index = torch.where(index < 0, index + otherwise, index)
    return torch.where(valid, index, otherwise)
