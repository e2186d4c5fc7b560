"""Functions that bring rows back into what has other dimensions: only those that are there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NoReturn

import torch
from torch import Tensor

from autopar.frontend.torch.rows import scatters as row_scatters
from autopar.frontend.torch.rows.indices import RowIndex, ordered, picked, row_index
from autopar.frontend.torch.rows.masked import is_mask
from autopar.frontend.torch.rows.picks import Done, Picks
from autopar.frontend.torch.rows.selections import NotApart, Rows, same

MEANS = (torch.mean, Tensor.mean)
"""Functions that average."""

MOST = 64
"""How many rows of a mask may be for the same place, where the last one of them is written."""


def write(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `h[mask] = rows`."""
    target, index, value = args
    if picks.selected.rows(target) is not None:
        return False, None
    rows = picks.selected.rows(value)
    if rows is None and not _has_places(picks, index):
        return False, None
    found = row_index(picks, target, index)
    if found is None and row_scatters.put(picks, target, index, value):
        return True, None
    if found is None:
        _refuse(picks, index, value)
    if rows is not None and not same(rows.selection, found.selection):
        raise NotApart(rows.selection.place)
    with picks.selected.returning(target):
        _put(picks, target, found, value, rows)
    return True, None


def _has_places(picks: Picks, index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    if any(picks.selected.rows(each) is not None for each in parts):
        return True
    return bool(picks.selected.open) and any(map(is_mask, parts))


def _refuse(picks: Picks, *given: Any) -> NoReturn:
    for each in given:
        for part in each if isinstance(each, tuple) else (each,):
            if (rows := picks.selected.rows(part)) is not None:
                raise NotApart(rows.selection.place)
    raise NotApart(picks.selected.open[-1].place)


def _put(picks: Picks, target: Tensor, index: RowIndex, value: Any, rows: Rows | None) -> None:
    selection, shape = index.selection, index.selection.shape
    view = target[index.basic]
    behind = view.ndim - len(index.dims) - index.at + 1
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=target.dtype)
    value = value.to(target.dtype)
    if rows is None:
        if value.ndim >= behind and value.shape[-behind] != 1:
            raise NotApart(selection.place)
        each = value
        for _ in range(len(shape) - 1 if value.ndim >= behind else 0):
            each = each.unsqueeze(-behind)
    else:
        if value.ndim - rows.dim != behind:
            raise NotApart(selection.place)
        each = value.unflatten(rows.dim, shape)
    valid = picks.valid(selection).reshape(*shape, *[1] * (behind - 1))
    missing = [axis for axis in range(len(shape)) if axis not in index.axes]
    # Of several rows for one place, the last one is written.
    if math.prod(shape[axis] for axis in missing) > MOST:
        raise NotApart(selection.place)
    place = ordered(view, index)
    chosen = [
        dict(zip(missing, at, strict=True))
        for at in itertools.product(*(range(shape[axis]) for axis in missing))
    ]
    ndim = len(shape) + behind - 1
    parts = [(picked(valid, at, ndim), picked(each, at, ndim)) for at in chosen]
    place.copy_(_last(parts, place))


def _last(parts: Sequence[tuple[Tensor, Tensor]], old: Tensor) -> Tensor:
    """Returns the last of several rows that is there, or else what was before.

    As torch has it, the gradient flows to all that are there.
    """
    made, total = old, torch.zeros((), dtype=old.dtype)
    for valid, row in parts:
        made = torch.where(valid, row, made)
    if len(parts) == 1 or not any(row.requires_grad for _, row in parts):
        return made
    for valid, row in parts:
        total = total + torch.where(valid, row, torch.zeros((), dtype=old.dtype))
    there = reduce(torch.logical_or, [valid for valid, _ in parts])
    return torch.where(there, total + (made - total).detach(), old)


def add(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `index_add` of rows."""
    given = dict(zip(("self", "dim", "index", "source"), args, strict=False)) | kwargs
    target: Any = given.get("self", given.get("input"))
    dim = given["dim"]
    index, source = given["index"], given["source"]
    at, rows = picks.selected.rows(index), picks.selected.rows(source)
    if at is None or picks.selected.rows(target) is not None or not isinstance(dim, int):
        return False, None
    dim %= target.ndim
    if rows is None or rows.dim != dim or not same(at.selection, rows.selection):
        raise NotApart(at.selection.place)
    inplace = func is Tensor.index_add_
    with picks.selected.returning(target if inplace else None):
        valid = picks.valid(at.selection)
        there = picks.zeroed(source, rows)
        if (alpha := kwargs.get("alpha", 1)) != 1:
            there = there * alpha
        made = _added(target, dim, index, there, at, valid)
        if inplace:
            target.copy_(made)
    if inplace:
        return True, target
    picks.selected.grow(made, target)
    return True, made


def put(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `index_put`."""
    given = dict(zip(("self", "indices", "values", "accumulate"), args, strict=False)) | kwargs
    target: Any = given.get("self", given.get("input"))
    indices = tuple(given["indices"])
    if not _has_places(picks, indices):
        return False, None
    if given.get("accumulate"):
        if len(indices) != 1:
            _refuse(picks, indices, given["values"])
        inplace = func in (Tensor.index_put_, torch.index_put_)
        call = Tensor.index_add_ if inplace else Tensor.index_add
        return add(picks, call, (target, 0, indices[0], given["values"]), {})
    if func in (Tensor.index_put_, torch.index_put_):
        write(picks, func, (target, indices, given["values"]), {})
        return True, target
    made = target.clone()
    picks.selected.grow(made, target)
    write(picks, func, (made, indices, given["values"]), {})
    return True, made


def total(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles sums and means over rows."""
    source = args[0]
    rows = picks.selected.rows(source)
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    if rows is None or len(args) > 2 or not set(kwargs) <= {"dim", "keepdim"}:
        return False, None
    given = list(range(source.ndim)) if dims is None else dims
    summed = [
        each % source.ndim for each in (given if isinstance(given, (list, tuple)) else [given])
    ]
    if rows.dim not in summed:
        return False, None
    with picks.selected.free():
        made = picks.zeroed(source, rows).sum(summed, keepdim=bool(kwargs.get("keepdim")))
        if func in MEANS:
            others = math.prod(source.shape[each] for each in summed if each != rows.dim)
            made = made / (picks.valid(rows.selection).sum() * others).to(made.dtype)
    return True, made


def _added(
    target: Tensor, dim: int, index: Tensor, there: Tensor, at: Rows, valid: Tensor
) -> Tensor:
    shape = at.selection.shape
    if at.axis is None or target.shape[dim] != shape[at.axis]:
        return torch.index_add(target, dim, torch.where(valid, index, 0), there)
    summed: Tensor = there.unflatten(dim, shape)  # type: ignore[no-untyped-call]
    others = [dim + axis for axis in range(len(shape)) if axis != at.axis]
    return target + (summed.sum(others) if others else summed)
