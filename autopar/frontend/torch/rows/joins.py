"""Rows that data select beside others: `torch.cat([edges[:, mask], loops], dim=1)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.frontend.torch.rows.picks import Done, Picks
from autopar.frontend.torch.rows.selections import Rows, Selection


def join(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `cat` along the rows: those of each part are there that were, and all of others."""
    parts = args[0] if args else kwargs.get("tensors", ())
    found = [picks.selected.rows(each) for each in parts]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    if not any(found) or "out" in kwargs or not isinstance(dim, int):
        return False, None
    dim %= parts[0].ndim
    along = all(rows is None or rows.dim == dim for rows in found)
    if not along or any(each.ndim != parts[0].ndim for each in parts):
        return False, None
    with picks.selected.free():
        made = func(*args, **kwargs)
    return True, picks.selected.mark(made, Rows(_joined(picks, parts, found, dim), dim))


def _joined(
    picks: Picks, parts: Sequence[Tensor], found: Sequence[Rows | None], dim: int
) -> Selection:
    """Returns the places of all parts, one after the other."""
    sources = tuple(
        each.shape[dim] if rows is None else (rows.selection.root, rows.selection.within)
        for each, rows in zip(parts, found, strict=True)
    )
    within = tuple(picks.selected.open)
    known = picks.joined.get((sources, within))
    if known is not None:
        return known
    with picks.selected.free(), torch.no_grad():
        valid = torch.cat(
            [
                torch.ones(each.shape[dim], dtype=torch.bool)
                if rows is None
                else rows.selection.valid
                for each, rows in zip(parts, found, strict=True)
            ]
        )
        for part in within:
            valid = valid & part.entered
    place = next(rows.selection.place for rows in found if rows is not None)
    some = not within and any(
        each.shape[dim] > 0 if rows is None else rows.selection.some
        for each, rows in zip(parts, found, strict=True)
    )
    made = Selection(tuple(valid.shape), valid, place, object(), within, some)
    picks.joined[sources, within] = made
    return made
