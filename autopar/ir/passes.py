"""What a pass is: a frozen dataclass whose fields are its options, called on a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol, TypeVar

from autopar.ir.program import Program


class Pass(Protocol):
    """Rewrites a program into a new one. `name` is how the command line refers to it."""

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __call__(self, program: Program) -> Program:
        """Returns the rewritten program; the argument is unchanged."""
        ...


SomePass = TypeVar("SomePass", bound=Pass)


def with_options(kind: type[SomePass], given: Mapping[str, object]) -> SomePass:
    """Returns a pass with those of the given options that it has; others are as by default.

    Args:
        kind: Its class.
        given: Options of any passes, by name.
    """
    make: Callable[..., SomePass] = kind
    return make(**{each.name: given[each.name] for each in fields(kind) if each.name in given})
