"""What can be explained: a build folder, or what a compilation returned; and names in it."""

from __future__ import annotations

from pathlib import Path

from autopar.base.arguments import PATH, shown
from autopar.base.errors import InvalidInputError, near_misses
from autopar.ir.builds.files import read_build
from autopar.ir.program import Program, Value
from autopar.pipeline.decided import Compiled, Decided

Explainable = str | Path | Compiled
"""What can be explained: a build folder, or what a compilation returned."""


def decided_of(what: Explainable) -> Decided:
    """Returns what was decided about what a build folder or a compilation holds.

    Raises:
        InvalidInputError: If it isn't a build, or an older autopar wrote it.
    """
    if isinstance(what, Compiled):
        return what
    if not PATH.fits(what):
        raise InvalidInputError(
            f"{shown(what)} is no build: give a build folder, or what `compile` or"
            " `compile_onnx` returned"
        )
    return Decided.of_build(read_build(what))


def program_with(decided: Decided, name: str) -> Program:
    """Returns the program that is to say about a value: before bodies, if it was there then."""
    return decided.completed if name in decided.completed.main.values else decided.serial


def value_named(decided: Decided, name: str) -> Value:
    """Returns the value that a name or label means.

    Args:
        decided: Its program.
        name: A value's name, with or without `%`, or the user's name of an input or output.

    Raises:
        InvalidInputError: If there is none; names the closest ones.
    """
    values = decided.serial.main.values
    name = name.removeprefix("%")
    if name in values:
        return values[name]
    ports = (*decided.serial.signature.inputs, *decided.serial.signature.outputs)
    labels = {label: port.name for port in reversed(ports) for label in port.aliases}
    labels |= {port.label: port.name for port in reversed(ports) if port.label}
    if name in labels:
        return values[labels[name]]
    # An ONNX node is located as `name (type)`.
    named = (op for op in decided.serial.main.ops if op.loc.name and not op.loc.line)
    nodes = {op.loc.name.partition(" (")[0]: op.results[0] for op in named}
    if name in nodes:
        return values[nodes[name]]
    raise InvalidInputError(f"there is no value {name!r}{_hint(name, [*labels, *values])}")


def _hint(name: str, known: list[str]) -> str:
    close = near_misses(name, dict.fromkeys(known))
    if close:
        return close
    holding = [each for each in dict.fromkeys(known) if name in each]
    if holding:
        return f"; {name!r} is in {', '.join(holding[:4])}"
    return "; `autopar inspect BUILD --serial` shows all names"
