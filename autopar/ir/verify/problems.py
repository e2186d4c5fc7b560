"""Collects what the verifiers find."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from autopar.base.errors import UNKNOWN, near_misses
from autopar.ir.program import Function, Op, Program, Value
from autopar.ir.text.print import message_context, print_op
from autopar.ir.text.print_parts import Context
from autopar.ir.text.words import value_name


class Problems:
    """Everything that is wrong with a program, in words.

    Attributes:
        found: One text per problem.
    """

    def __init__(self, program: Program) -> None:
        self.found: list[str] = []
        self._program = program

    @cached_property
    def _context(self) -> Context:
        return message_context(self._program)

    def add(self, subject: str, expected: object, got: object) -> None:
        """Adds a problem of the program as a whole."""
        self.found.append(f"{subject}: expected {expected}, got {got}")

    def in_function(self, function: Function, subject: str, expected: object, got: object) -> None:
        """Adds a problem of a function as a whole."""
        self.add(f"in {function.name}: {subject}", expected, got)

    def at_value(
        self, function: Function, value: Value, subject: str, expected: object, got: object
    ) -> None:
        """Adds a problem of a value, which shows its source line if it has one."""
        place = f" ({value.loc})" if value.loc != UNKNOWN else ""
        name = value_name(value.name)
        self.in_function(function, f"{name}: {subject}{place}", expected, got)

    def at_op(
        self, function: Function, op: Op, subject: str, expected: object, got: object
    ) -> None:
        """Adds a problem of an op, which is shown below it."""
        text = print_op(op, function.values, self._context)
        self.found.append(
            f"in {function.name}: {subject}: expected {expected}, got {got}\n      {text}"
        )


def one_of(name: str, known: Iterable[str]) -> str:
    """Returns `one of a, b; did you mean b?` for what was expected instead of a name."""
    known = tuple(known)
    return f"one of {', '.join(known)}{near_misses(name, known)}" if known else "none"
