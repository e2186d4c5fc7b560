"""Numbers of rows that data select, which code may compare with zero and hand on, and nothing else.

There are more rows than are selected (see `selections`), so their number isn't what it is eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeGuard

import torch

Asks = Callable[[bool], bool]
"""(what is so if there are rows) -> what the code is told."""


class Count:
    """The number of rows, as all are computed. It is told to functions of torch, and to no others.

    Python's own functions, and containers, ask for it in the same way as torch's do before they
    handle what they are given. So whoever asks is noted, and refused if no such call follows.

    Args:
        number: The number.
        rows: What is known of the rows.
        asks: Answers whether there are any.
        refuse: Raises what ends the capture of rows.
        told: Notes that it is told to somebody.
    """

    def __init__(
        self,
        number: int,
        rows: Any,
        asks: Asks,
        refuse: Callable[[], NoReturn],
        told: Callable[[Count], object],
    ) -> None:
        self.number = number
        self.rows = rows
        self.asks = asks
        self.refuse = refuse
        self.told = told

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # Code that asks whether it is an int goes on as it does eagerly.
        return int

    def __index__(self) -> int:
        self.told(self)
        return self.number

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


def is_count(given: object) -> TypeGuard[Count]:
    """Whether something is a number of rows, which says of itself that it is an int."""
    return type(given) is Count


class Shape(tuple):  # type: ignore[type-arg]
    """A shape with a number of rows, which is one number where it is looked at."""

    count: Count  # type: ignore[assignment]
    at: int

    def _each(self) -> Iterator[Any]:
        sizes = tuple.__iter__(self)
        return iter([self.count if at == self.at else size for at, size in enumerate(sizes)])

    def __iter__(self) -> Iterator[Any]:
        return self._each()

    def __getitem__(self, key: Any) -> Any:
        """Returns a size, or several."""
        if not isinstance(key, slice):
            found = super().__getitem__(key)
            return self.count if key % len(self) == self.at else found
        places = list(range(len(self)))[key]
        found = torch.Size(tuple.__iter__(self))[key]
        return shape_of(found, places.index(self.at), self.count) if self.at in places else found

    def __add__(self, other: Any) -> Any:
        return shape_of((*tuple.__iter__(self), *other), self.at, self.count)

    def __radd__(self, other: Any) -> Any:
        return shape_of((*other, *tuple.__iter__(self)), len(other) + self.at, self.count)

    def numel(self) -> NoReturn:
        """Isn't known."""
        self.count.refuse()

    def index(self, *_: Any) -> NoReturn:
        """Isn't known."""
        self.count.refuse()

    def _refused(self, *_: object) -> NoReturn:
        self.count.refuse()


_REFUSED_SHAPES = (
    *("eq", "ne", "lt", "le", "gt", "ge", "hash", "contains"),
    *("mul", "rmul", "repr", "str", "format"),
)

for _name in _REFUSED_SHAPES:
    setattr(Shape, f"__{_name}__", Shape._refused)


def shape_of(sizes: Iterable[int], at: int, count: Count) -> Shape:
    """Returns a shape whose size of one dimension is a number of rows."""
    made = Shape(size.number if is_count(size) else size for size in sizes)
    made.count, made.at = count, at
    return made


def count_in(given: Any) -> Count | None:
    """Returns a number of rows that is among the arguments of a function; None if there is none."""
    if is_count(given):
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


def plain_numbers(given: Any) -> Any:
    """Returns arguments of a function of torch with plain numbers in the place of rows'."""
    if is_count(given):
        return given.number
    if isinstance(given, Shape):
        return torch.Size(tuple.__iter__(given))
    if type(given) in (list, tuple):
        return type(given)(map(plain_numbers, given))
    if type(given) is dict:
        return {name: plain_numbers(each) for name, each in given.items()}
    return given
