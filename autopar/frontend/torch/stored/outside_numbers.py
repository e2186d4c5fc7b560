"""Numbers outside of a model that change while its code runs, as a global counter of calls does.

A program has the value that such a number had while it was traced. Whether code computes with it
isn't known, so it is reported, and not refused as attributes of modules are.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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

_TORCH = ("torch", "torch.")


def functions_of(model: nn.Module) -> list[FunctionType]:
    """Returns the methods of a module and those within it, and what these call in their files.

    Those of torch aren't among them.
    """
    classes = {base for module in model.modules() for base in type(module).__mro__}
    found: dict[CodeType, FunctionType] = {}
    for each in sorted(classes, key=lambda each: (each.__module__, each.__qualname__)):
        if not each.__module__.startswith(_TORCH):
            for method in vars(each).values():
                _collect(method, found)
    return list(found.values())


def outside_numbers(functions: Sequence[FunctionType]) -> Numbers:
    """Returns the numbers that functions see outside of what they are given, by place."""
    found: dict[Place, int | float] = {}
    for function in functions:
        file = function.__code__.co_filename
        for name, value in _seen_by(function):
            found.update(((file, place), each) for place, each in _within(name, value, DEPTH))
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
    function = inspect.unwrap(value) if callable(value) else value
    if not isinstance(function, FunctionType) or function.__code__ in found:
        return
    found[function.__code__] = function
    for _, other in _seen_by(function):
        code = getattr(other, "__code__", None)
        if code is not None and code.co_filename == function.__code__.co_filename:
            _collect(other, found)


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
        for key, item in vars(value).items():
            yield from _within(f"{name}.{key}", item, depth - 1)


def _is_plain(value: Any) -> bool:
    """Returns whether an object is one of the user's own, that only holds something."""
    own = not type(value).__module__.startswith((*_TORCH, "builtins"))
    return own and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type))
