"""Functions that ask for a number of rows, or for the positions of a mask one by one."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import torch

from autopar.frontend.torch.conditions.counts import Count, shape_of
from autopar.frontend.torch.origin import calling, user_frame
from autopar.frontend.torch.rows.parts import asks_length
from autopar.frontend.torch.rows.picks import Done, Picks
from autopar.frontend.torch.rows.selections import NotApart, Rows


def shape(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `x.shape` and `x.size()`."""
    rows = picks.selected.rows(args[0])
    if rows is None:
        return False, None
    sizes = shape_of(func(args[0]), rows.dim, _count(picks, rows, rows.selection.rows))
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return True, sizes if dim is None else sizes[dim]


def number(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `x.numel()`."""
    rows = picks.selected.rows(args[0])
    return (False, None) if rows is None else (True, _count(picks, rows, func(args[0])))


def length(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `len(x)`, which Python makes a plain number of: only an `if` may ask for it."""
    rows = picks.selected.rows(args[0])
    if rows is None or rows.dim != 0:
        return False, None
    frame = user_frame(sys._getframe(1))
    asks, found = None if frame is None else asks_length(frame, args[0]), func(args[0])
    if asks is None or found == 0:
        raise NotApart(rows.selection.place)
    asks(_count(picks, rows, found))
    return True, found


def _count(picks: Picks, rows: Rows, number: int) -> Count:
    def refuse() -> NoReturn:
        picks.selected.refuse(rows.selection.place)

    def asks(answer: bool) -> bool:
        if rows.selection.some:
            return answer
        with picks.selected.returning():
            entered = picks.valid(rows.selection).any()
        return picks.visits.skips(entered, answer, rows.selection.place)

    return Count(number, rows, asks, refuse, picks.tell)


def truth(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `if tensor`, which asks for what it is in one way or the other."""
    asked = args[0]
    if picks.selected.rows(asked) is not None or asked.ndim or asked.dtype != torch.bool:
        return False, None
    caller = calling(sys._getframe(1))
    if caller is not None and caller.f_code.co_name == "__bool__":
        caller = calling(caller.f_back)
    if caller is not user_frame(sys._getframe(1)) or picks.fixed(asked) is not None:
        return False, None
    answer = picks.visits.enters(asked)
    return (False, None) if answer is None else (True, answer)


def each(picks: Picks, func: Any, args: Any, kwargs: dict[str, Any]) -> Done:
    """Handles `for position in places`, of which tensors make `iter(places.unbind(0))`."""
    rows = picks.selected.rows(args[0])
    caller = calling(sys._getframe(1))
    if rows is None or rows.dim != 0 or caller is None or caller.f_code.co_name != "__iter__":
        return False, None
    if calling(caller.f_back) is not user_frame(caller):
        return False, None
    if rows.axis is None or len(rows.selection.shape) != 1:
        raise NotApart(rows.selection.place)
    shape = tuple(args[0].shape[1:])
    return True, picks.visits.visit(rows.selection, shape)
