"""Refuses models whose `forward` draws from Python's or NumPy's generators.

A program would have the numbers that were drawn while it was captured, in every step.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
from torch import nn

from autopar.frontend.torch.origin import user_frame
from autopar.ir.errors import InvalidInputError

_LIBRARY = sysconfig.get_path("stdlib") + os.sep

State = tuple[Any, ...]
"""Of both generators."""


@contextmanager
def no_lots(again: Callable[[], object]) -> Iterator[None]:
    """Refuses what draws numbers within, and puts the generators back.

    Args:
        again: Runs the code once more, to find the line.

    Raises:
        InvalidInputError: If a number was drawn. Names the user's line.
    """
    before = _state()
    try:
        yield
        drawn = _state() != before
    finally:
        _restore(before)
    if drawn:
        try:
            line = _first_draw(again)
        finally:
            _restore(before)
        raise InvalidInputError(
            f"{line}: forward draws from Python's `random` or from `numpy.random`, and a program"
            " would have the numbers of this one draw in all steps; draw with torch, or switch off"
            " what draws"
        )


def _state() -> State:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


def _restore(state: State) -> None:
    python, kind, keys, *rest = state
    random.setstate(python)
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))


class _Found(BaseException):
    """Ends a run at the line that draws."""


def _first_draw(again: Callable[[], object]) -> str:
    """Returns the user's line that draws first, and the line of the module that calls it."""
    before = _state()
    line = "the model"

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal line
        if event in ("return", "c_return") and _state() != before:
            sys.setprofile(None)
            line = _place(frame)
            raise _Found

    sys.setprofile(look)
    try:
        again()
    except _Found:
        pass
    finally:
        sys.setprofile(None)
    return line


def _place(frame: FrameType) -> str:
    """Returns the user's line that a frame belongs to, and that of the module which calls it."""
    inner = user_frame(frame)
    while inner is not None and inner.f_code.co_filename.startswith(_LIBRARY):
        inner = user_frame(inner.f_back)
    if inner is None:
        return "the model"
    caller: FrameType | None = inner
    while caller is not None and not isinstance(caller.f_locals.get("self"), nn.Module):
        caller = user_frame(caller.f_back)
    line = f"{inner.f_code.co_filename}:{inner.f_lineno}"
    if caller is None or caller is inner:
        return line
    return f"{line} (called in {caller.f_code.co_filename}:{caller.f_lineno})"
