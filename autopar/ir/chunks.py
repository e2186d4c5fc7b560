"""What a user wants of a value over time, as the plan of the op that makes it says it.

plan(chunk="0 8")    it is cut along dimension 0 in 8 parts, which are computed one after another
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.program import Op

CHUNK = "chunk"
"""The plan field."""


def chunked_op(op: Op, dim: int, parts: int) -> Op:
    """Returns an op whose result is wanted in parts."""
    return replace(op, plan=(*without_chunk(op).plan, (CHUNK, f"{dim} {parts}")))


def chunk_of(op: Op) -> tuple[int, int] | None:
    """Returns the dimension and the number of parts in an op's plan; None if there are none."""
    text = dict(op.plan).get(CHUNK)
    if text is None:
        return None
    dim, _, parts = text.partition(" ")
    return int(dim), int(parts)


def without_chunk(op: Op) -> Op:
    """Returns an op of which nothing is wanted in parts."""
    return replace(op, plan=tuple(entry for entry in op.plan if entry[0] != CHUNK))
