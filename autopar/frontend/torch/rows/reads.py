"""Functions that read rows which data select: zeros where none is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autopar.frontend.torch.rows.indices import RowIndex, row_index, spread
from autopar.frontend.torch.rows.picks import Done, Picks, along
from autopar.frontend.torch.rows.selections import Rows, Selection


def places(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `torch.where(mask)` and `nonzero`."""
    mask = args[0]
    if func is torch.where and (len(args) > 1 or kwargs):
        return False, None
    selection = picks.selection(mask) if mask.ndim and not mask.is_floating_point() else None
    if selection is None:
        return False, None
    positions = [_positions(picks, selection, axis) for axis in range(mask.ndim)]
    if func is torch.where or kwargs.get("as_tuple"):
        return True, tuple(positions)
    with picks.selected.free():
        joined = torch.stack(positions, dim=1)
    axis = 0 if len(positions) == 1 else None
    return True, picks.selected.mark(joined, Rows(selection, 0, axis, places=True))


def _positions(picks: Picks, selection: Selection, axis: int) -> Tensor:
    shape = selection.shape
    with picks.selected.free():
        along = torch.arange(shape[axis]).reshape(
            [-1 if at == axis else 1 for at in range(len(shape))]
        )
        made = along.expand(shape).reshape(-1)
    return picks.selected.mark(made, Rows(selection, 0, axis))


def read(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `h[mask]`, `h[places]` and the like."""
    source, index = args
    if (rows := picks.selected.rows(source)) is not None and rows.places:
        axis = _column(index)
        if axis is not None and -source.shape[1] <= axis < source.shape[1]:
            return True, _positions(picks, rows.selection, axis % source.shape[1])
    if picks.selected.rows(source) is not None:
        return False, None
    found = row_index(picks, source, index)
    if found is not None:
        return True, _gathered(picks, source, found)
    return _looked_up(picks, source, index)


def chosen(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `index_select`."""
    if len(args) != 3 or picks.selected.rows(args[2]) is None:
        return False, None
    index = (*[slice(None)] * (args[1] % args[0].ndim), args[2])
    return read(picks, func, (args[0], index), {})


def masked(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `masked_select`."""
    if len(args) != 2 or args[0].shape != args[1].shape:
        return False, None
    return read(picks, func, args, {})


def _gathered(picks: Picks, source: Tensor, index: RowIndex) -> Tensor:
    selection = index.selection
    with picks.selected.free():
        found = spread(source[index.basic], index).flatten(
            index.at, index.at + len(selection.shape) - 1
        )
        valid = along(picks.valid(selection), found.ndim - index.at)
        made = torch.where(valid, found, torch.zeros((), dtype=found.dtype))
    return picks.selected.mark(made, Rows(selection, index.at))


def _looked_up(picks: Picks, source: Tensor, index: Any) -> Done:
    """Reads with indices that were computed for each row."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if len(parts) != 1 or not isinstance(parts[0], Tensor):
        return False, None
    rows = picks.selected.rows(parts[0])
    if rows is None or parts[0].ndim != 1 or parts[0].dtype == torch.bool:
        return False, None
    with picks.selected.free():
        valid = picks.valid(rows.selection)
        found = source[torch.where(valid, parts[0], 0)]
        made = torch.where(along(valid, found.ndim), found, torch.zeros((), dtype=found.dtype))
    return True, picks.selected.mark(made, Rows(rows.selection, 0))


def _column(index: Any) -> int | None:
    """Returns which column an index reads, if that is all."""
    if not isinstance(index, tuple) or len(index) != 2 or index[0] != slice(None):
        return None
    return index[1] if isinstance(index[1], int) and not isinstance(index[1], bool) else None
