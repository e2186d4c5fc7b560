"""What code draws from Python's and NumPy's generators while it is traced.

One number between two others stands for all that may be drawn: it tells how a comparison ends that
always ends alike, and can't be read otherwise. So a draw that decides nothing does no harm. What
is drawn after the code itself sets the seed is the same in each run, and is a number.
"""

from __future__ import annotations

import numbers
import operator
import os
import random
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NoReturn

import numpy as np
from torch import nn

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.conditions.conditions import by_lot
from autopar.frontend.torch.conditions.unreadable import Unreadable
from autopar.frontend.torch.origin import user_frame

_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_LEAST = 2.0**-53
"""The least number above 0 that is drawn. 0 itself, once in 2**53 draws, is left out of account."""

Ends = tuple[float, float]


class Lot(Unreadable):
    """A number that was drawn.

    Args:
        ends: The least and the largest that it can be, in any order.
    """

    ends: Ends
    __array_ufunc__ = None

    def __init__(self, ends: Ends) -> None:
        self.ends = ends

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raises why it can't be read.

        Raises:
            InvalidInputError: Always. Names the user's line.
        """
        raise drawn_at(sys._getframe(1))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Refuses to say what it is to those that ask whether it is a number."""
        self.refuse()

    def __lt__(self, other: Any) -> bool:
        return self._ended(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._ended(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._ended(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._ended(operator.ge, other)

    def _ended(self, compare: Callable[[Any, Any], bool], other: Any) -> bool:
        """Returns how a comparison ends, if it always ends alike.

        Raises:
            InvalidInputError: If it doesn't.
        """
        if not isinstance(other, numbers.Real):
            self.refuse()
        first, last = (compare(end, other) for end in self.ends)
        if first != last:
            raise InvalidInputError(by_lot(_user_frame(sys._getframe(1))))
        return bool(first)


def drawn_at(frame: FrameType | None) -> InvalidInputError:
    """Returns the refusal of a draw that the line of a frame makes or reads."""
    return InvalidInputError(
        f"{_place(frame)}: forward draws from Python's `random` or from `numpy.random`, and a"
        " program would have the numbers of this one draw in all steps; draw with torch, or switch"
        " off what draws"
    )


class Generator:
    """A generator of Python's or NumPy's.

    Args:
        module: Where its functions are.
        state: Returns its state.
        ends: By function that draws one number: given its arguments, between what.
    """

    def __init__(
        self,
        module: Any,
        state: Callable[[], Any],
        ends: Mapping[str, Callable[..., Ends | None]],
    ) -> None:
        self._module, self._state, self._ends = module, state, ends
        self._thread = threading.get_ident()
        self._before = state()
        self._seeded = self._drawn = False

    def has_drawn(self) -> bool:
        """Whether it drew other numbers than those that stand for all."""
        return self._drawn or (not self._seeded and self._state() != self._before)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Lets numbers stand for all that may be drawn within."""
        own = {name: self._standing(name, ends) for name, ends in self._ends.items()}
        own["seed"] = self._seeding()
        kept = {name: getattr(self._module, name) for name in own}
        try:
            vars(self._module).update(own)
            yield
        finally:
            vars(self._module).update(kept)

    def _standing(self, name: str, ends: Callable[..., Ends | None]) -> Callable[..., Any]:
        drawn = getattr(self._module, name)

        def draw(*args: Any, **kwargs: Any) -> Any:
            free = not self._seeded and threading.get_ident() == self._thread
            found = ends(*args, **kwargs) if free else None
            return drawn(*args, **kwargs) if found is None else Lot(found)

        return draw

    def _seeding(self) -> Callable[..., None]:
        seed = self._module.seed

        def seeded(*args: Any, **kwargs: Any) -> None:
            self._drawn = self.has_drawn()
            seed(*args, **kwargs)
            [given, *_] = (*args, kwargs.get("a", kwargs.get("seed")))
            self._seeded = self._seeded or given is not None

        return seeded


@contextmanager
def watched() -> Iterator[tuple[Generator, Generator]]:
    """Watches what is drawn within."""
    generators = (
        Generator(random, random.getstate, {"random": _unit, "uniform": _uniform}),
        Generator(np.random, numpy_state, _NUMPY),
    )
    with ExitStack() as stack:
        for each in generators:
            stack.enter_context(each.watched())
        yield generators


def numpy_state() -> tuple[Any, ...]:
    """Returns the state of NumPy's generator, which can be compared."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return kind, np.asarray(keys).tobytes(), *rest


def _unit(*sizes: Any, **size: Any) -> Ends | None:
    return None if sizes or size else _uniform()


def _uniform(*given: Any, **named: Any) -> Ends | None:
    low, high = given if len(given) == 2 else (0.0, 1.0)
    plain = not named and len(given) in (0, 2)
    if not plain or not all(type(end) in (int, float) for end in (low, high)):
        return None
    return low + (high - low) * _LEAST, low + (high - low) * (1 - _LEAST)


_NUMPY = {"random": _unit, "random_sample": _unit, "rand": _unit, "uniform": _uniform}


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame that is the user's and not Python's own library's."""
    found = user_frame(frame)
    while found is not None and found.f_code.co_filename.startswith(_LIBRARY):
        found = user_frame(found.f_back)
    return found


def _place(frame: FrameType | None) -> str:
    """Returns the user's line that a frame belongs to, and that of the module which calls it."""
    inner = _user_frame(frame)
    if inner is None:
        return "the model"
    caller: FrameType | None = inner
    while caller is not None and not isinstance(caller.f_locals.get("self"), nn.Module):
        caller = user_frame(caller.f_back)
    line = f"{inner.f_code.co_filename}:{inner.f_lineno}"
    if caller is None or caller is inner:
        return line
    return f"{line} (called in {caller.f_code.co_filename}:{caller.f_lineno})"
