"""What a pass is: a frozen dataclass whose fields are its options, called on a program."""

from __future__ import annotations

from typing import ClassVar, Protocol

from autopar.ir.program import Program


class Pass(Protocol):
    """Rewrites a program into a new one. `name` is how the command line refers to it."""

    name: ClassVar[str]

    def __call__(self, program: Program) -> Program:
        """Returns the rewritten program; the argument is unchanged."""
        ...
