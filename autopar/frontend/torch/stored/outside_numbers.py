"""Numbers outside of a model that change while code runs, as a global counter of calls does.

The code is the model's, and that of what is called beside it: a loss, or a training step.

A program has the value that such a number had while it was traced. Whether code computes with it
isn't known, so it is reported, and not refused as attributes of modules are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from autopar.base.errors import Loc
from autopar.ir.builds.manifest import ReportEntry

FROZEN = "frozen"
"""The category of these entries."""

DEPTH = 2
"""How far numbers are looked for in containers and objects that code names."""

Place = tuple[str, str]
"""Where a number is: the file of the code that names it, and how that is written."""

Numbers = Mapping[Place, int | float]


@dataclass(frozen=True)
class OwnCode:
    """Code that is traced: of a model, and of what is called beside it, as a loss.

    Attributes:
        functions: The functions, and what these call in their files; those of torch aren't among
            them.
        holders: Objects with code, other than modules of the model, whose attributes are refused.
    """

    functions: Sequence[FunctionType]
    holders: Sequence[Any] = ()

    @classmethod
    def of(cls, model: nn.Module, beside: Sequence[Any] = ()) -> OwnCode:
        """Returns the code of a model, and of callables beside it."""
        holders = [each for code in beside for each in _owners(code)]
        owners = [*model.modules(), *holders]
        found: dict[CodeType, FunctionType] = {}
        for each in _own_classes(owners):
            for method in vars(each).values():
                _collect(method, found)
        for code in beside:
            _collect(code, found)
        own = set(map(id, model.modules()))
        return cls(list(found.values()), [each for each in holders if id(each) not in own])

    def numbers(self) -> Numbers:
        """Returns the numbers that it sees outside of what it is given, by place."""
        found: dict[Place, int | float] = {}
        for function in self.functions:
            file = function.__code__.co_filename
            for name, value in _seen_by(function):
                found.update(((file, place), each) for place, each in _within(name, value, DEPTH))
        for holder in self.holders:
            name = type(holder).__name__
            within = _items(name, vars(holder), DEPTH)
            found.update(((_file_of(type(holder)), place), each) for place, each in within)
        return found


def changed_numbers(seen: Sequence[Numbers]) -> Iterator[ReportEntry]:
    """Yields an entry for each number that every run changed.

    Args:
        seen: The numbers before code ran, and after each run.
    """
    for file, name in seen[0] if len(seen) > 1 else ():
        values = [numbers.get((file, name)) for numbers in seen]
        if all(_differ(*pair) for pair in pairwise(values)):
            detail = (
                f"each call changes it, the last one that was traced from {values[-2]} to"
                f" {values[-1]}, and programs don't: if the result depends on it, make it an input"
            )
            yield ReportEntry(FROZEN, f"{name} of {Path(file).name}", detail, Loc(file))


def _collect(value: Any, found: dict[CodeType, FunctionType]) -> None:
    """Adds a function, those that it wraps, and those of its file that it names."""
    called = value.func if isinstance(value, partial) else getattr(value, "__func__", value)
    function = inspect.unwrap(called) if callable(called) else called
    if not isinstance(function, FunctionType) or function.__code__ in found:
        return
    if _is_torchs(function.__module__):
        return
    found[function.__code__] = function
    for _, other in _seen_by(function):
        code = getattr(other, "__code__", None)
        if code is not None and code.co_filename == function.__code__.co_filename:
            _collect(other, found)


def _owners(code: Any) -> list[Any]:
    """Returns the objects whose methods code is: modules, or another one; none of a function."""
    if isinstance(code, partial):
        return _owners(code.func)
    owner = getattr(code, "__self__", code)
    if isinstance(owner, nn.Module):
        return list(owner.modules())
    return [owner] if _is_plain(owner) and not isinstance(owner, FunctionType) else []


def _own_classes(owners: Sequence[Any]) -> list[type]:
    """Returns the classes of objects, and those that these are made of, without torch's."""
    classes = {base for owner in owners for base in type(owner).__mro__}
    own = [each for each in classes if not _is_torchs(each.__module__)]
    return sorted(own, key=lambda each: (each.__module__, each.__qualname__))


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__


def _is_torchs(module: str | None) -> bool:
    return module == "torch" or (module or "").startswith("torch.")


def _seen_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the globals and variables around a function that its code names."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in sorted(names & function.__globals__.keys()):
        yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # It has no value yet.
            yield name, cell.cell_contents


def _differ(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and before != after and before == before


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _within(name: str, value: Any, depth: int) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, (int, float)):
        yield name, value
    elif depth and isinstance(value, list):
        for at, item in enumerate(value):
            yield from _within(f"{name}[{at}]", item, depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            yield from _within(f"{name}[{key!r}]", item, depth - 1)
    elif depth and _is_plain(value):
        yield from _items(name, vars(value), depth)


def _items(
    name: str, attributes: Mapping[str, Any], depth: int
) -> Iterator[tuple[str, int | float]]:
    for key, item in attributes.items():
        yield from _within(f"{name}.{key}", item, depth - 1)


def _is_plain(value: Any) -> bool:
    """Returns whether an object is one of the user's own, that only holds something."""
    own = not _is_torchs(type(value).__module__) and type(value).__module__ != "builtins"
    return own and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type))
