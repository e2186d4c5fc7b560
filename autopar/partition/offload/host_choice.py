"""Choice: which updates the host carries out, because they take less time there.

On the device, what waits comes up and its new content goes down; on the host, the gradient goes
down, and a parameter that waits nowhere comes up. Seconds are serialized ones, as everywhere where
plans are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autopar.cost import Cluster
from autopar.cost.evaluation import Evaluator
from autopar.ir.expr.at_rank import value_at
from autopar.ir.memory.transfers import DEVICE, HOST, on_host
from autopar.ir.program import Program
from autopar.partition.offload.host_updates import HostUpdate, host_updates
from autopar.partition.offload.uses import value_bytes


class HostSeconds(NamedTuple):
    """What updates by the host take.

    Attributes:
        transfers: On the link.
        host: On the host.
        saved: On the device, which doesn't compute them.
    """

    transfers: float = 0.0
    host: float = 0.0
    saved: float = 0.0

    @property
    def added(self) -> float:
        """Serialized seconds that they add to a step."""
        return self.transfers + self.host - self.saved


NONE = HostSeconds()


def chosen(
    program: Program, names: Sequence[str], cluster: Cluster, update: str
) -> list[HostUpdate]:
    """Returns the updates that the host carries out.

    Args:
        program: A partitioned program.
        names: The stored inputs that wait in the host's memory.
        cluster: Predicts seconds.
        update: One of `PLACES`.
    """
    possible = [] if update == DEVICE else host_updates(program, names)
    if update == HOST or not possible:
        return possible
    prices = UpdatePrices(program, cluster)
    saved = {each.owner: prices.saved(each) for each in possible}
    faster = [each for each in possible if saved[each.owner] > 0]
    numbers = prices.of_numbers(faster)
    return faster if sum(saved[each.owner] for each in faster) > numbers else []


class UpdatePrices:
    """Prices updates of a program.

    Args:
        program: A partitioned program.
        cluster: Predicts seconds.
    """

    def __init__(self, program: Program, cluster: Cluster) -> None:
        self._main, self._cluster = program.main, cluster
        self._evaluator = Evaluator(program, cluster, {}, None, {})
        self._renewed = {source for _, source in program.main.aliases}
        self._ops = {op.results[0]: op for op in program.main.ops if op.results}

    def of(self, updates: Sequence[HostUpdate]) -> HostSeconds:
        """Returns what updates by the host take, of a program in which the device does them."""
        parts = [HostSeconds(self.of_numbers(updates)), *map(self._of, updates)]
        return HostSeconds(*map(sum, zip(*parts, strict=True)))

    def of_numbers(self, updates: Iterable[HostUpdate]) -> float:
        """Returns the seconds of transfers of numbers, each of which a slice sends once."""
        sent = {(name, each.fixed) for each in updates for name in each.sent}
        return self._transfers(name for name, _ in sent if not self._main.values[name].shape)

    def saved(self, update: HostUpdate) -> float:
        """Returns by how much an update is faster on the host, but for numbers that it reads."""
        stored = {name for name in update.inputs if self._main.values[name].shape}
        return self._transfers((*stored, *(stored & self._renewed))) - self._of(update).added

    def _of(self, update: HostUpdate) -> HostSeconds:
        moved = (*(n for n in update.sent if self._main.values[n].shape), *update.back)
        host = saved = 0.0
        for name in sorted(update.ops):
            op = self._ops[name]
            around = {
                each: value_at(self._main.values[each], self._evaluator.coords)
                for each in (*op.operands, *op.results)
            }
            saved += self._evaluator.cost(op, around).seconds
            host += self._evaluator.cost(on_host(op), around).seconds
        return HostSeconds(self._transfers(moved), host, saved)

    def _transfers(self, names: Iterable[str]) -> float:
        values, cluster = self._main.values, self._cluster
        return sum(cluster.transfer_seconds(value_bytes(values[name])) for name in sorted(names))
