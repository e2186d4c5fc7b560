"""Waiting: sums that travel with others, and how they are reduced.

What nobody reads in the phase that computes it, as gradients are for the update, waits: its sum is
joined with others (`cost.buckets`). Then a latency that a way around would spare is paid already,
by the bucket, and the way around has latencies of its own. So such sums are reduced without one if
that is faster where they share a bucket; seconds are still those of moves that are alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.cost.collectives import Border, CommunicationModel
from autopar.cost.reshard.buckets import BUCKET_BYTES, SharedModel, sums_of
from autopar.cost.reshard.planner import Move, Reshard, ReshardPlanner
from autopar.ir.layout import Layout
from autopar.ir.ops.view import VIEWS
from autopar.ir.program import Op


def awaited(ops: Sequence[Op]) -> frozenset[str]:
    """Returns the values that are read in the phase that computes them.

    A view reads what it shows only if something reads the view.

    Args:
        ops: Of a function, each behind those whose results it reads.
    """
    readers: dict[str, list[Op]] = {}
    found: set[str] = set()
    for op in reversed(ops):
        for name in op.results:
            for reader in readers.get(name, ()):
                if reader.kind in VIEWS:
                    is_read = reader.results[0] in found
                else:
                    is_read = (reader.phase, reader.microbatch) == (op.phase, op.microbatch)
                if is_read:
                    found.add(name)
        for name in op.operands:
            readers.setdefault(name, []).append(op)
    return frozenset(found)


class WaitingPlanner(ReshardPlanner):
    """Plans the reshards of values that wait.

    Args:
        planner: Plans those of all others.
    """

    def __init__(self, planner: ReshardPlanner) -> None:
        super().__init__(planner.model)
        self._others = planner
        self._direct = ReshardPlanner(_FreeSums(planner.model))
        self._shared = SharedModel(planner.model, BUCKET_BYTES)

    def plan(self, source: Layout, target: Layout, itemsize: int) -> Reshard:
        """Returns the reshard that is faster where sums travel with others, in seconds alone.

        Of two: the one that is the fastest alone, and the one with the fastest moves beside sums.
        """
        plain = self._others.plan(source, target, itemsize)
        if not source.partial or source.mesh != target.mesh or len(plain.moves) < 2:
            return plain
        key = (source, target, itemsize)
        found = self._known.get(key)
        if found is None:
            moves = self._direct.plan(source, target, itemsize).moves
            direct = Reshard.of(tuple(map(self._alone, moves)))
            is_faster = self._joined(source, direct, itemsize) < self._joined(
                source, plain, itemsize
            )
            found = self._known[key] = direct if is_faster else plain
        return found

    def _joined(self, source: Layout, reshard: Reshard, itemsize: int) -> float:
        """Returns the seconds of a reshard whose sums take their parts of full buckets."""
        pairs = sums_of(self.model, source, reshard, itemsize)
        return sum(self._shared.seconds_of(*pair) for pair in pairs)

    def _alone(self, move: Move) -> Move:
        """Returns a move with the seconds that it takes by itself."""
        model = self.model
        match move.kind:
            case "all_reduce":
                seconds = model.all_reduce(move.bytes, move.axes)
            case "reduce_scatter":
                seconds = model.reduce_scatter(move.bytes * model.members(move.axes), move.axes)
            case _:
                return move
        return replace(move, seconds=seconds + model.local_copy(move.bytes))


class _FreeSums(CommunicationModel):
    """Prices sums as if they took nothing.

    Args:
        model: Prices everything else.
    """

    def __init__(self, model: CommunicationModel) -> None:
        super().__init__(model.cluster, model.mesh, model.order)

    def all_reduce(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns no seconds."""
        return 0.0

    def reduce_scatter(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns no seconds."""
        return 0.0

    def borders(self, axes: Sequence[str]) -> list[Border]:
        """Returns the borders, which sums cross for nothing."""
        return [Border(0.0, 0.0, each.inner) for each in super().borders(axes)]
