"""Refuses models whose `forward` draws from Python's or NumPy's generators.

A program would have the numbers that were drawn while it was captured, in every step.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.conditions.draws import drawn_at, numpy_state, watched

State = tuple[Any, ...]
"""Of both generators."""


@contextmanager
def no_lots(again: Callable[[], object]) -> Iterator[None]:
    """Refuses what draws numbers within, and puts the generators back.

    Args:
        again: Runs the code once more, to find the line.

    Raises:
        InvalidInputError: If a number was drawn that may decide something. Names the user's line.
    """
    before = _state()
    try:
        with watched() as generators:
            yield
        if any(each.has_drawn() for each in generators):
            raise _first_draw(again)
    finally:
        _restore(before)


def _state() -> State:
    return random.getstate(), *numpy_state()


def _restore(state: State) -> None:
    python, kind, keys, *rest = state
    random.setstate(python)
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))


class _Found(BaseException):
    """Ends a run at the line that draws."""


def _first_draw(again: Callable[[], object]) -> InvalidInputError:
    """Returns the refusal of the user's line that draws first."""
    found = drawn_at(None)

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal found
        if event in ("return", "c_return") and any(each.has_drawn() for each in generators):
            sys.setprofile(None)
            found = drawn_at(frame)
            raise _Found

    with watched() as generators:
        sys.setprofile(look)
        try:
            again()
        except _Found:
            pass
        finally:
            sys.setprofile(None)
    return found
