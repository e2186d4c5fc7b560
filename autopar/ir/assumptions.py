"""Assumptions: values that the code of a model asks for, and for which its program was made.

A program goes one way where the code has a condition. So the scalar that decides is an output of
the program, whose port says what it was for the example: every run compares, before anything of it
stays. `assert x.isfinite().all()` is an assumption too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from autopar.base.errors import Loc
from autopar.ir.dtypes import EPSILONS
from autopar.ir.program import ASSUMPTION, Arg, Function, Port, Program

Scalar = bool | int | float


@dataclass(frozen=True, slots=True)
class Assumption:
    """What a scalar must be.

    Attributes:
        expected: Its value.
        code: The user's line that asks for it.
        loc: Where that is.
        message: Of something that is asserted, as its author put it.
        rounding: How far another value may be, relatively, that is the same but for rounding: of
            floats, which each mesh sums up in an order of its own.
    """

    expected: Scalar
    code: str
    loc: Loc
    message: str = ""
    rounding: float = 0.0

    def to_options(self) -> tuple[tuple[str, Arg], ...]:
        """Returns the options of its port."""
        return (
            ("expected", self.expected),
            ("code", self.code),
            ("file", self.loc.file),
            ("line", self.loc.line),
            ("message", self.message),
        )

    @classmethod
    def from_port(cls, port: Port) -> Assumption:
        """Returns what the port of an assumption says."""
        said = dict(port.options)
        expected, line = said["expected"], said["line"]
        assert isinstance(expected, (bool, int, float))
        assert isinstance(line, int)
        loc = Loc(str(said["file"]), line)
        rounding = EPSILONS.get(port.dtype, 0.0) ** 0.75
        return cls(expected, str(said["code"]), loc, str(said["message"]), rounding)

    def __str__(self) -> str:
        place = f"{Path(self.loc.file).name}:{self.loc.line}"
        return f"{place} ({self.message or self.code}) is {self.expected}"

    def holds(self, found: Scalar) -> bool:
        """Whether a run found what is expected; what isn't a number is the same each time."""
        if found == self.expected or (_is_nan(found) and _is_nan(self.expected)):
            return True
        return self.rounding > 0 and math.isclose(found, self.expected, rel_tol=self.rounding)

    def refusal(self, found: Scalar) -> str:
        """Returns why a run with another value is refused."""
        remedy = "Leave such inputs out"
        if self.message:
            return (
                f"{self.loc}: {self.message} ({self.code}): that isn't so for this input. {remedy}"
            )
        return (
            f"{self.loc}: what this line asks for ({self.code}) was {self.expected} for the example"
            f" that the program was compiled for, and is {found} for this input. {remedy}, or"
            " compile another program with one of them as example"
        )


def assumption_ports(program: Program, function: Function) -> tuple[Port, ...]:
    """Returns the ports of those of a program's assumptions that a function of it returns."""
    returned = set(function.outputs)
    ports = program.signature.outputs
    return tuple(port for port in ports if port.role == ASSUMPTION and port.name in returned)


def _is_nan(value: Scalar) -> bool:
    return isinstance(value, float) and math.isnan(value)
