"""Strip: what a rank executes says nothing about distribution any more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.base.errors import VerificationError
from autopar.ir.collectives import is_collective
from autopar.ir.program import Function, Program


@dataclass(frozen=True)
class Strip:
    """Removes every distribution attribute of a mapped program and checks that none is left.

    Ports keep their global shapes and boxes, and rank expressions their coordinates: they say what
    a rank holds, not how that was decided.

    Raises:
        VerificationError: If a collective still names mesh axes: the program was not mapped.
    """

    name: ClassVar[str] = "strip"

    def __call__(self, program: Program) -> Program:
        """Returns the executable program."""
        functions = {name: _stripped(function) for name, function in program.functions.items()}
        stripped = replace(program, functions=functions, mesh=None, level="executable")
        if left := distribution_attributes(stripped):
            raise VerificationError("an executable program has distribution attributes", left)
        return stripped


def distribution_attributes(program: Program) -> list[str]:
    """Returns every place of a program that says something about distribution."""
    attributes = ["the program has a mesh"] if program.mesh is not None else []
    for function in program.functions.values():
        for value in function.values.values():
            if value.dist is not None or value.origin is not None:
                attributes.append(f"@{function.name}: %{value.name} has a layout ({value.loc})")
        for op in function.ops:
            results = ", ".join(f"%{name}" for name in op.results)
            if op.dist is not None or op.origin is not None:
                attributes.append(
                    f"@{function.name}: {results} = {op.kind} has a choice ({op.loc})"
                )
            if is_collective(op.kind) and op.arg("axes") is not None:
                attributes.append(
                    f"@{function.name}: {results} = {op.kind} names mesh axes ({op.loc})"
                )
    return attributes


def _stripped(function: Function) -> Function:
    values = {
        name: replace(value, dist=None, origin=None) for name, value in function.values.items()
    }
    ops = tuple(replace(op, dist=None, origin=None) for op in function.ops)
    return replace(function, values=values, ops=ops)
