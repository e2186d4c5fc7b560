"""Python's objects that a function holds, and whether what ran meanwhile changed them.

Functions that a part of the code calls may count or collect something, which its source doesn't
show, and later code may read that.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor

_CONTAINERS = (list, dict, set)
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


class Held(NamedTuple):
    """An object that may change, and what it held."""

    value: Any
    items: tuple[Any, ...]


def objects_of(frame: FrameType) -> list[Held]:
    """Returns what may change of the local variables of a frame, and of the objects that they are.

    Args:
        frame: The frame.
    """
    found = {id(each): each for value in frame.f_locals.values() for each in _objects(value)}
    return [Held(each, _items(each)) for each in found.values()]


def has_changed(held: Held) -> bool:
    """Whether an object holds something else now."""
    now = _items(held.value)
    return len(now) != len(held.items) or not all(map(_same, held.items, now))


def _objects(value: Any) -> Iterator[Any]:
    if isinstance(value, _CONTAINERS):
        yield value
    elif hasattr(value, "__dict__") and not isinstance(
        value, (Tensor, type, ModuleType, FunctionType)
    ):
        yield vars(value)
        yield from (each for each in vars(value).values() if isinstance(each, _CONTAINERS))


def _items(value: Any) -> tuple[Any, ...]:
    return (*value, *value.values()) if isinstance(value, dict) else (*value,)


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)
