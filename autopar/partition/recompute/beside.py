"""Beside: transfers start as early and are awaited as late as the peak of memory allows.

A copy to the host may start as soon as its tensor is there. Until it is awaited, the tensor stays
in the device's memory; what comes back takes memory from the start on. So ends are moved behind,
and starts of what comes back ahead, until computation hides the transfer or memory would go above
the peak that there is anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from autopar.cost import Cluster, evaluate, kinds_of_ranks, memory_timeline, peak_bytes_of
from autopar.ir.emitted import END_OFFLOAD, OFFLOAD, RELOAD
from autopar.ir.program import Op, Program

Place = tuple[int, int]
"""Where an op is put: by which op of the old order, and whether before it (-1) or behind it."""


def beside(program: Program, cluster: Cluster) -> Program:
    """Returns a program whose transfers run beside what it computes, at no higher a peak.

    Args:
        program: A partitioned program, of ranks on one slice.
        cluster: Predicts seconds.
    """
    ops = program.main.ops
    if not any(op.kind == OFFLOAD for op in ops):
        return program
    moves = _Moves(program, cluster)
    moves.offloads()
    moves.reloads()
    order = sorted(range(len(ops)), key=lambda index: (*moves.places.get(index, (index, 0)), index))
    moved = program.with_main(replace(program.main, ops=tuple(ops[index] for index in order)))
    peaks = [peak_bytes_of(each, kinds_of_ranks(each)) for each in (program, moved)]
    before, after = (evaluate(each, cluster).overlapped_seconds for each in (program, moved))
    return moved if peaks[1] <= peaks[0] and after < before else program


class _Moves:
    """Finds places for transfers, one after the other.

    Attributes:
        places: Of the ops that are moved.
        room: Bytes that may be added during each op.
        clock: When each op is done if nothing waits for a transfer.
    """

    def __init__(self, program: Program, cluster: Cluster) -> None:
        self.ops = program.main.ops
        timeline = memory_timeline(program)
        self.peak = timeline.peak_bytes
        self.room = [self.peak - nbytes for nbytes in timeline.at_bytes]
        self.costs = evaluate(program, cluster).costs
        own = (each.compute_seconds + each.communication_seconds for each in self.costs)
        self.clock = list(accumulate(own))
        self.places: dict[int, Place] = {}
        self.makers = {name: index for index, op in enumerate(self.ops) for name in op.results}
        self.ends = {
            op.operands[0]: index for index, op in enumerate(self.ops) if op.kind == END_OFFLOAD
        }

    def offloads(self) -> None:
        """Starts copies to the host where their tensors are made, and ends them later."""
        free = 0.0
        for made, offload in sorted(
            (self.makers[op.operands[0]], offload) for offload, op in self._of(OFFLOAD)
        ):
            free = max(free, self.clock[made]) + self.costs[offload].transfer_seconds
            self.places[offload] = made, 1
            end = place = self.ends[self.ops[offload].results[0]]
            last = self._first_reload(self.ops[end].results[0])
            nbytes = self.costs[offload].transferred_bytes
            while self.clock[place] < free and place + 1 < last and self.room[place + 1] >= nbytes:
                place += 1
                self.room[place] -= nbytes
            if place > end:
                self.places[end] = place, 2

    def reloads(self) -> None:
        """Starts copies to the device earlier."""
        free = self.clock[-1]
        for reload, op in reversed(self._of(RELOAD)):
            free = min(free, self.clock[reload]) - self.costs[reload].transfer_seconds
            end = self.makers[op.operands[0]]
            first, place = self.places.get(end, (end, 0))[0], reload
            nbytes = self.costs[reload].transferred_bytes
            while self.clock[place] > free and place - 1 > first and self.room[place - 1] >= nbytes:
                place -= 1
                self.room[place] -= nbytes
            if place < reload:
                self.places[reload] = place, -1

    def _of(self, kind: str) -> Sequence[tuple[int, Op]]:
        return [(index, op) for index, op in enumerate(self.ops) if op.kind == kind]

    def _first_reload(self, host: str) -> int:
        return next(index for index, op in self._of(RELOAD) if op.operands[0] == host)
