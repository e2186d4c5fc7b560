"""Late: loops of a pipeline's last stage are parts of its backward passes.

A schedule tells forward from backward passes. What is computed in chunks in both can't be
torn apart by it, or all chunks would be there at once. So all of it is part of the backward pass,
and so is what follows from it in the forward pass, as the loss. In the last stage, one comes right
behind the other anyway.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.program import MICROBATCH, Program


def in_backward_pass(program: Program) -> Program:
    """Returns a serial program in which no loop is in both passes."""
    main = program.main
    phases: dict[str, set[str]] = {}
    for op in main.ops:
        for loop, _ in op.loops:
            phases.setdefault(loop, set()).add(op.phase)
    both = {loop for loop, found in phases.items() if len(found) > 1} - {MICROBATCH}
    if not both:
        return program
    late: set[str] = set()
    ops = []
    for op in main.ops:
        is_late = not both.isdisjoint(loop for loop, _ in op.loops)
        if op.phase == "forward" and (is_late or not late.isdisjoint(op.operands)):
            late.update(op.results)
            op = replace(op, phase="backward")
        ops.append(op)
    return program.with_main(replace(main, ops=tuple(ops)))
