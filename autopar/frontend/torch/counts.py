"""Numbers of rows that data select, which code may compare with zero and hand on, and nothing else.

There are more rows than are selected (see `selections`), so their number isn't what it is eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch

Asks = Callable[[bool], bool]
"""(what is so if there are rows) -> what the code is told."""


class Count(int):
    """The number of rows, as all are computed.

    Args:
        number: The number.
        asks: Answers whether there are any.
        refuse: Raises what ends the capture of rows.
        repeats: Tells whether it may be used as a plain number, of which it isn't told.
    """

    asks: Asks
    refuse: Callable[[], NoReturn]
    repeats: Callable[[], bool]
    rows: Any

    def __new__(
        cls,
        number: int,
        asks: Asks,
        refuse: Callable[[], NoReturn],
        repeats: Callable[[], bool],
    ) -> Count:
        """Returns a number."""
        made = super().__new__(cls, number)
        made.asks = asks
        made.refuse = refuse
        made.repeats = repeats
        return made

    def looked_at(self) -> Count:
        """Returns it, if code may have it."""
        if self.repeats():
            self.refuse()
        return self

    def __eq__(self, other: object) -> bool:
        return self.asks(False) if _is(other, 0) else self._refused()

    def __ne__(self, other: object) -> bool:
        return self.asks(True) if _is(other, 0) else self._refused()

    def __gt__(self, other: object) -> bool:
        return self.asks(True) if _is(other, 0) else self._refused()

    def __le__(self, other: object) -> bool:
        return self.asks(False) if _is(other, 0) else self._refused()

    def __ge__(self, other: object) -> bool:
        return self.asks(True) if _is(other, 1) else self._refused()

    def __lt__(self, other: object) -> bool:
        return self.asks(False) if _is(other, 1) else self._refused()

    def __bool__(self) -> bool:
        return self.asks(True)

    def __hash__(self) -> int:
        return self._refused()

    def _refused(self, *_: object) -> NoReturn:
        self.refuse()


def _is(other: object, number: int) -> bool:
    return type(other) is int and other == number


_REFUSED = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow"
    " rpow neg pos abs int float round trunc floor ceil format str repr and rand or ror xor rxor"
    " lshift rlshift rshift rrshift invert complex"
)

for _name in _REFUSED.split():
    setattr(Count, f"__{_name}__", Count._refused)


class Shape(tuple):  # type: ignore[type-arg]
    """A shape with a number of rows, which is one number where it is looked at."""

    count: Count  # type: ignore[assignment]
    at: int

    def _each(self) -> Iterator[int]:
        sizes = tuple.__iter__(self)
        self.count.looked_at()
        return iter([self.count if at == self.at else size for at, size in enumerate(sizes)])

    def __iter__(self) -> Iterator[int]:
        return self._each()

    def __getitem__(self, key: Any) -> Any:
        """Returns a size, or several."""
        if not isinstance(key, slice):
            found = super().__getitem__(key)
            return self.count.looked_at() if key % len(self) == self.at else found
        places = list(range(len(self)))[key]
        found = torch.Size(tuple.__iter__(self))[key]
        return shape_of(found, places.index(self.at), self.count) if self.at in places else found

    def __add__(self, other: Any) -> Any:
        return shape_of((*tuple.__iter__(self), *other), self.at, self.count)

    def __eq__(self, other: object) -> bool:
        return self.count._refused()

    def __ne__(self, other: object) -> bool:
        return self.count._refused()

    def __hash__(self) -> int:
        return self.count._refused()

    def numel(self) -> int:
        """Isn't known."""
        return self.count._refused()


def shape_of(sizes: Iterable[int], at: int, count: Count) -> Shape:
    """Returns a shape whose size of one dimension is a number of rows."""
    made = Shape(int.__index__(size) for size in sizes)
    made.count, made.at = count, at
    return made


def count_in(given: Any) -> Count | None:
    """Returns a number of rows that is among the arguments of a function; None if there is none."""
    if isinstance(given, Count):
        return given
    if isinstance(given, Shape):
        return given.count
    if isinstance(given, slice):
        given = (given.start, given.stop, given.step)
    if isinstance(given, dict):
        given = tuple(given.values())
    if isinstance(given, (list, tuple)):
        return next((found for each in given if (found := count_in(each)) is not None), None)
    return None
