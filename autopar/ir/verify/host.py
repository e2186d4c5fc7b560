"""Checks which memory values are in, where some wait in the host's or are computed there."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from autopar.ir.collectives import is_collective
from autopar.ir.emitted import END_OFFLOAD, OFFLOAD, OVER, RELOAD
from autopar.ir.memory.transfers import ENDED, STARTED, host_values, hosted, is_on_host
from autopar.ir.program import CALLS, Function, Op, Program, refs
from autopar.ir.text.words import value_name
from autopar.ir.verify.problems import Problems


def check_host(program: Program, function: Function, problems: Problems) -> None:
    """Adds where the device reads what is in its host's memory, or the host what isn't there.

    Transfers alone read both, and new content is where the old one was. What is called brings what
    it is given of the host's memory.
    """
    inputs, there = hosted(program, function), host_values(program, function)
    for op in function.ops if there else ():
        if is_on_host(op):
            _check_on_host(function, op, there, problems)
        elif op.kind in (RELOAD, OFFLOAD):
            over = [ref.name for ref in refs(op.arg(OVER))]
            if not inputs.issuperset(over):
                expected = "an input of the function"
                problems.at_op(function, op, f"argument {OVER}", expected, over[0])
        elif op.kind not in (END_OFFLOAD, *CALLS) and (read := there.intersection(op.operands)):
            name = value_name(min(read))
            expected = f"{name} brought to the device"
            problems.at_op(function, op, "operand", expected, f"{name} itself")
    for output, source in function.aliases:
        if (output in there) != (source in inputs):
            where = "the host's memory" if source in inputs else "the device's memory"
            subject = f"alias to {value_name(source)}"
            problems.in_function(function, subject, f"a new content in {where}", output)


def _check_on_host(function: Function, op: Op, there: AbstractSet[str], problems: Problems) -> None:
    """The host computes what is in its memory, and neither communicates nor calls."""
    if op.kind in (*STARTED, *ENDED, *CALLS) or is_collective(op.kind):
        problems.at_op(function, op, "op", "one that a host may compute", op.kind)
    for name in op.operands:
        if name not in there and name in function.values:
            subject, expected = f"operand {value_name(name)}", "a value in the host's memory"
            problems.at_op(function, op, subject, expected, "one on the device")
