"""Which outputs of a model are inputs of its next call: state, that stays where it is computed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from autopar.base.errors import InvalidInputError, near_misses
from autopar.ir.expr.expression import IntExpr, Size
from autopar.ir.program import Port, Program


def connected(
    state: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]
) -> dict[str, str]:
    """Returns the output that each input of state is in the next call.

    Args:
        state: Outputs by input. A `*` in both stands for the same characters.
        inputs: All inputs.
        outputs: All outputs.

    Raises:
        InvalidInputError: If there is no such input or output.
    """
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


def check_state(program: Program) -> None:
    """Checks that state fits the next call.

    Raises:
        InvalidInputError: If it is of another dtype or rank then, a size that is no open one
            changes, or it can't begin empty.
    """
    outputs = {port.name: port for port in program.signature.outputs}
    grown = [(outputs[out], into) for out, into in program.main.aliases if out in outputs]
    inputs = {port.name: port for port in program.signature.inputs}
    given = {s for p in program.signature.inputs if p.role == "input" for s in p.shape}
    renewed: dict[Size, IntExpr] = {}
    for new, old in ((new, inputs[into]) for new, into in grown if inputs[into].role == "state"):
        if old.dtype != new.dtype or len(old.shape) != len(new.shape):
            raise _unfit(old, new, "is of another dtype or rank")
        for size, other in zip(old.shape, new.shape, strict=True):
            if not isinstance(size, Size) or size in given:
                if other - size != 0:
                    raise _unfit(old, new, f"has {other} where {size} was")
            elif other - renewed.setdefault(size, other) != 0:
                raise _unfit(old, new, f"has {other} where others have {renewed[size]}")
            elif size.least:
                raise _unfit(old, new, f"can't begin empty, as {size.name} must be {size.least}")


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
    shapes = f"{old.dtype}{list(map(str, old.shape))}, {new.dtype}{list(map(str, new.shape))}"
    return InvalidInputError(
        f"state: {new.label!r} can't be {old.label!r} of the next call: it {why} ({shapes})"
    )
