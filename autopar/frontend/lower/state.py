"""Which outputs of a model are inputs of its next call: state, that stays where it is computed."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from autopar.base.errors import InvalidInputError, near_misses
from autopar.frontend.lower.contents import with_contents
from autopar.ir.expr.expression import IntExpr, Size, shape_str
from autopar.ir.program import Port, Program, Signature


def with_state(program: Program, state: Mapping[str, str]) -> Program:
    """Returns a program that keeps outputs which are inputs of the next call.

    Args:
        program: A serial program.
        state: Outputs by input, both by their labels. A `*` in both stands for the same characters.

    Raises:
        InvalidInputError: If there is no such input or output, or it doesn't fit the next call.
    """
    if not state:
        return program
    ports = program.signature
    known = dict(program.main.aliases)
    inputs = {port.user_label: port.name for port in ports.inputs if port.role == "input"}
    labels = [port.user_label for port in ports.outputs if port.name not in known]
    pairs = _connected(state, list(inputs), labels)
    kept = {inputs[given] for given in pairs}
    renewed = {returned: inputs[given] for given, returned in pairs.items()}
    updates = [known.get(port.name) or renewed.get(port.user_label) for port in ports.outputs]
    main = with_contents(program.main, updates)
    values = {
        name: replace(value, role="state") if name in kept else value
        for name, value in main.values.items()
    }
    signature = Signature(
        tuple(
            replace(port, role="state", fill=0.0) if port.name in kept else port
            for port in ports.inputs
        ),
        tuple(
            replace(port, name=name) for port, name in zip(ports.outputs, main.outputs, strict=True)
        ),
    )
    made = replace(program.with_main(replace(main, values=values)), signature=signature)
    _check(made, kept)
    return made


def _connected(
    state: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]
) -> dict[str, str]:
    """Returns the output that each input of state is in the next call, by label."""
    found: dict[str, str] = {}
    for given, returned in state.items():
        pairs = list(_pairs(given, returned, inputs))
        if not pairs:
            _refuse(given, returned, "input", given, inputs)
        for name, output in pairs:
            if output not in outputs:
                _refuse(given, returned, "output", output, outputs)
            if found.setdefault(name, output) != output:
                raise InvalidInputError(
                    f"state: input {name!r} can't be both {found[name]!r} and {output!r}"
                )
    taken = sorted(found.values())
    for one, other in pairwise(taken):
        if one == other:
            raise InvalidInputError(f"state: output {one!r} is the new content of two inputs")
    return found


def _check(program: Program, kept: Container[str]) -> None:
    """Refuses state that is of another dtype or rank, or of other sizes, in the next call."""
    outputs = {port.name: port for port in program.signature.outputs}
    inputs = {port.name: port for port in program.signature.inputs}
    given = {size for port in inputs.values() if port.role == "input" for size in port.shape}
    renewed: dict[Size, IntExpr] = {}
    for out, into in program.main.aliases:
        if into in kept:
            _check_port(inputs[into], outputs[out], given, renewed)


def _check_port(
    old: Port, new: Port, given: Container[IntExpr], renewed: dict[Size, IntExpr]
) -> None:
    if old.dtype != new.dtype or len(old.shape) != len(new.shape):
        raise _unfit(old, new, "is of another dtype or rank")
    for size, other in zip(old.shape, new.shape, strict=True):
        if not isinstance(size, Size) or size in given:
            if other - size != 0:
                raise _unfit(old, new, f"has {other} where {size} was")
        elif other - renewed.setdefault(size, other) != 0:
            raise _unfit(old, new, f"has {other} where others have {renewed[size]}")


def _pairs(given: str, returned: str, inputs: Sequence[str]) -> Iterator[tuple[str, str]]:
    if given.count("*") != returned.count("*") or given.count("*") > 1:
        raise InvalidInputError(f"state: {given}={returned} must have one * on both sides, or none")
    pattern = re.compile(re.escape(given).replace(r"\*", "(.*)"))
    for name in inputs:
        if match := pattern.fullmatch(name):
            yield name, returned.replace("*", "".join(match.groups()))


def _refuse(given: str, returned: str, what: str, name: str, known: Sequence[str]) -> None:
    some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    hint = near_misses(name, known) or f"; there are {some or 'none'}"
    raise InvalidInputError(f"state: {given}={returned}: there is no {what} {name!r}{hint}")


def _unfit(old: Port, new: Port, why: str) -> InvalidInputError:
    shapes = ", ".join(f"{port.dtype}{shape_str(port.shape)}" for port in (old, new))
    return InvalidInputError(
        f"state: {new.label!r} can't be {old.label!r} of the next call: it {why} ({shapes})"
    )
