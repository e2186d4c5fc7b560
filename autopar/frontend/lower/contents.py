"""Gives every new content of a stored input a value of its own.

What a program keeps for its next call is written over later. So it must not be what the caller
handed over or gets back, nor the new content of another input.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import chain, count

from autopar.ir.program import Function, Op, Ref


def with_contents(function: Function, updates: Sequence[str | None]) -> Function:
    """Returns a function with its aliases.

    Args:
        function: The function, without any.
        updates: Per output, the input whose new content it is; None for others.
    """
    plain = (out for out, into in zip(function.outputs, updates, strict=True) if into is None)
    taken = {*function.inputs, *plain}
    copies: list[Op] = []
    outputs = list(function.outputs)
    values = dict(function.values)
    producers = function.producers()
    for at, into in enumerate(updates):
        if into is not None and outputs[at] in taken:
            copy = _copy(outputs[at], _unused(f"{into}.new", values), producers.get(outputs[at]))
            (outputs[at],) = copy.results
            values[outputs[at]] = replace(
                values[function.outputs[at]], name=outputs[at], role="activation"
            )
            copies.append(copy)
        taken.add(outputs[at])
    return replace(
        function,
        outputs=tuple(outputs),
        values=values,
        ops=(*function.ops, *copies),
        aliases=tuple((out, into) for out, into in zip(outputs, updates, strict=True) if into),
    )


def _copy(source: str, result: str, producer: Op | None) -> Op:
    """Returns a copy in the phase of what it copies."""
    args = (("self", Ref(source)),)
    if producer is None:
        return Op("aten.clone.default", args, (result,))
    return replace(producer, kind="aten.clone.default", args=args, results=(result,), plan=())


def _unused(name: str, known: Container[str]) -> str:
    numbered = (f"{name}.{number}" for number in count(1))
    return next(each for each in chain([name], numbered) if each not in known)
