"""Python's objects that a function can see, and whether what ran meanwhile changed them.

Functions that a part of the code calls may count or collect something, which its source doesn't
show, and later code may read that.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

_CONTAINERS = (list, dict, set)
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_OTHER = (Tensor, type, ModuleType, FunctionType, *_PLAIN)

DEPTH = 4
"""How far objects are looked for in containers and attributes of local variables."""

_WARNED = "__warningregistry__"
"""Where Python notes which warnings it showed, in the globals of the code that warned."""


class Held(NamedTuple):
    """An object that may change, and what it held."""

    value: Any
    items: tuple[Any, ...]


def objects_of(frame: FrameType) -> list[Held]:
    """Returns what may change of the variables of a frame, and of the objects that they are.

    Those are its local variables, with all that they hold and modules within them, and the globals
    of its file.

    Args:
        frame: The frame.
    """
    found: dict[int, Any] = {id(frame.f_globals): frame.f_globals}
    for name, value in frame.f_globals.items():
        if name != _WARNED:
            _find(value, found, 1)
    for value in frame.f_locals.values():
        _find(value, found, DEPTH)
    return [Held(each, _items(each)) for each in found.values()]


def has_changed(held: Held) -> bool:
    """Whether an object holds something else now."""
    now = _items(held.value)
    return len(now) != len(held.items) or not all(map(_same, held.items, now))


def _find(value: Any, found: dict[int, Any], depth: int) -> None:
    """Adds what may change of an object to what was found, by identity."""
    if isinstance(value, _OTHER):
        return
    if isinstance(value, nn.Module) and depth == DEPTH:
        for module in value.modules():
            for each in _within(module, found):
                _find(each, found, depth - 2)
        return
    for each in _within(value, found) if depth else ():
        _find(each, found, depth - 1)


def _within(value: Any, found: dict[int, Any]) -> Iterator[Any]:
    """Adds what an object keeps its content in, and returns that, unless it is known."""
    held = value if isinstance(value, (*_CONTAINERS, tuple)) else getattr(value, "__dict__", None)
    if held is None or id(held) in found:
        return iter(())
    found[id(held)] = held
    return iter(held.values() if isinstance(held, dict) else held)


def _items(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, dict):
        return (*value,)
    return tuple(part for item in value.items() if item[0] != _WARNED for part in item)


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)
