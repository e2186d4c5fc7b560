"""Writes a replay into a function: copies become ops and values of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.ir.layout import Origin
from autopar.ir.program import Function, Op
from autopar.partition.recompute.replay import Held, Step
from autopar.partition.recompute.tape import Tape


def write_copies(tape: Tape, steps: Sequence[Step]) -> Function:
    """Returns the function that runs these steps."""
    function = tape.function
    values = dict(function.values)
    names: dict[Held, str] = {}
    for step in steps:
        if step.copy < 0:
            continue
        for held in step.makes:
            like = values[tape.names[held[0]]]
            name, count = f"{like.name}.again", 1
            while name in values:
                count += 1
                name = f"{like.name}.again{count}"
            origin = Origin("chosen", f"%{like.name}, computed again for the backward pass")
            values[name] = replace(like, name=name, role="activation", origin=origin)
            names[held] = name
    ops = tuple(_op(tape, step, names) for step in steps)
    return replace(function, ops=ops, values=values)


def _op(tape: Tape, step: Step, names: dict[Held, str]) -> Op:
    op = tape.ops[step.op]
    if step.copy >= 0:
        again = tape.again[step.op]
        assert again is not None
        op = replace(
            again, results=tuple(names[held] for held in step.makes), microbatch=step.batch
        )
    given = (tape.reads if step.copy < 0 else tape.again_reads)[step.op]
    found = {
        tape.names[value]: names.get(held, tape.names[held[0]])
        for value, held in zip(given, step.reads, strict=True)
    }
    return op.with_operands([found[name] for name in op.operands])
