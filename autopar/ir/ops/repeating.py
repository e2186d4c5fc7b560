"""Repeating: what computes the results of an op once more, where that isn't the op itself.

Ops of a program are functions of their operands, random ones too: they draw by seed and number. The
few that aren't say so beside their rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.ir.ops.create import creation
from autopar.ir.ops.normalize import batch_norm
from autopar.ir.ops.table import Again
from autopar.ir.program import Op

AGAIN: Mapping[str, Again | None] = {**batch_norm.AGAIN, **creation.AGAIN}
"""By kind; None for what can't be computed once more. Kinds that aren't here are repeated."""


def again(op: Op) -> Op | None:
    """Returns the op that computes the results of an op again, or the first ones of them.

    None if there is none.
    """
    if op.kind not in AGAIN:
        return op
    found = AGAIN[op.kind]
    if found is None:
        return None
    args = tuple((name, arg) for name, arg in op.args if name not in found.without)
    return replace(op, kind=found.kind, args=args, results=op.results[: found.results])
