"""The rank that holds most.

Parameters and activations are largest on the first rank, but what a rank holds at once needn't be.
With uneven blocks a rank whose block is shorter sends a padded copy of it to be gathered, and a
window in the middle has neighbours on both sides. Ranks on which all sizes are equal hold the same,
so one of each kind is looked at: where all blocks are even, that is the first one alone. Ranks on
different slices of the mesh hold what their own ops make.

The first process along an axis keeps what a sum is to have once, and the others make zeros of their
own. So of ranks on which all sizes are equal, the one that makes the most of those is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autopar.cost.memory.buffers import Execution
from autopar.cost.memory.timeline import EXACT, Allocator, MemoryTimeline, memory_timeline
from autopar.ir.emitted import TO_PARTIAL
from autopar.ir.expr.arrays import Ints, evaluate_on_ranks
from autopar.ir.expr.expression import Expr, IntExpr, axes_of, sizes_of, substitute
from autopar.ir.parts import parts_of
from autopar.ir.program import Program

Coords = Mapping[str, int]


def kinds_of_ranks(program: Program, ranks: Sequence[Coords] | None = None) -> tuple[Coords, ...]:
    """Returns the coordinates of a rank of each kind, as sizes of values tell them apart.

    It is the first one that holds the most, by the zeros that it makes.

    Args:
        program: A program of any level.
        ranks: The coordinates of those who run it; by default all of the program's mesh.
    """
    sizes, indices = _sizes(program), _indices(program)
    axes = sorted({axis for each in (*sizes, *indices) for axis in axes_of(each)})
    if not axes:
        return (ranks[0] if ranks else {},)
    columns = _columns(program, axes, ranks)
    count = len(columns[axes[0]])
    kept = [evaluate_on_ranks(index, columns) == 0 for index in indices]
    order = np.argsort(sum(kept, np.zeros(count, np.int64)), kind="stable")
    rows = np.stack(
        [np.zeros(count, np.int64), *(evaluate_on_ranks(size, columns) for size in sizes)], axis=1
    )
    _, chosen = np.unique(rows[order], axis=0, return_index=True)
    firsts = np.sort(order[chosen])
    if ranks is not None:
        return tuple(ranks[index] for index in firsts)
    return tuple({axis: int(columns[axis][index]) for axis in axes} for index in firsts)


def peak_rank_timeline(
    program: Program,
    kinds: Sequence[Coords] | None = None,
    *,
    allocator: Allocator = EXACT,
    execution: Execution | None = None,
) -> MemoryTimeline:
    """Returns the memory over time of the rank whose peak is the highest; the first one of several.

    Args:
        program, execution: As of `autopar.cost.memory.lifetimes.lifetimes`.
        kinds: The coordinates of the ranks to look at; by default those of `kinds_of_ranks`.
        allocator: How bytes are counted.
    """
    timelines = (
        memory_timeline(part, coords, allocator=allocator, execution=execution)
        for coords in (kinds_of_ranks(program) if kinds is None else kinds)
        for part in parts_of(program)
    )
    return max(timelines, key=lambda timeline: timeline.peak_bytes)


def peak_bytes_of(part: Program, kinds: Sequence[Coords]) -> int:
    """Returns the most bytes that a rank holds which runs a program of its own.

    Args:
        part: The program, one of `parts_of`.
        kinds: The coordinates of a rank of each kind.
    """
    return max(memory_timeline(part, coords).peak_bytes for coords in kinds)


def _indices(program: Program) -> list[Expr]:
    """Returns where along axes ranks are that make zeros if they aren't the first ones there."""
    ops = (op for function in program.functions.values() for op in function.ops)
    found = dict.fromkeys(op.arg("index") for op in ops if op.kind == TO_PARTIAL)
    return [index for index in found if isinstance(index, Expr)]


def _sizes(program: Program) -> list[Expr]:
    """Returns the sizes that differ between ranks, each once."""
    values = (value for each in program.functions.values() for value in each.values.values())
    sizes = (size for value in values for size in value.shape if isinstance(size, Expr))
    found = map(_planned, dict.fromkeys(sizes))
    return [expr for expr in dict.fromkeys(found) if isinstance(expr, Expr)]


def _planned(expr: Expr) -> IntExpr:
    """Returns what an expression is on ranks at the sizes that are planned for."""
    planned = {str(size): size.planned for size in sizes_of(expr)}
    return substitute(expr, planned) if planned else expr


def _columns(
    program: Program, axes: Sequence[str], ranks: Sequence[Coords] | None
) -> dict[str, Ints]:
    """Returns the coordinates of all ranks along axes."""
    if ranks is not None:
        return {axis: np.array([coords[axis] for coords in ranks], np.int64) for axis in axes}
    assert program.mesh is not None
    grid = np.indices([program.mesh.axis_size(axis) for axis in axes], np.int64)
    return dict(zip(axes, grid.reshape(len(axes), -1), strict=True))
