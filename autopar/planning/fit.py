"""Fit: what is done to a rank's program so that it stays within a limit of memory.

Activations are computed again, or wait in the host's memory (`recompute`); so do parameters and
optimizer state (`offload`), where a cluster has a link to that memory and it costs less, or the
user says so. What waits there is chosen among fixed levels, whatever the limit is: first the state
of the optimizer, which a step needs once, and then parameters. So more memory is never slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from autopar.base.units import counted, human_bytes, human_seconds
from autopar.cost import Cluster, peak_rank_timeline
from autopar.ir.activations import is_asked
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.memory.transfers import DEVICE, EITHER
from autopar.ir.program import Program
from autopar.partition import OffloadState
from autopar.partition.offload import Traffic, may_be_on_host, traffic_of
from autopar.partition.offload.uses import value_bytes
from autopar.partition.recompute import (
    DoesNotFit,
    Learned,
    Looped,
    LoopRecomputer,
    Recomputed,
    Recomputer,
)

ROLES = ("optimizer_state", "parameter")
"""What may wait in the host's memory, what is needed least often first."""

_TRIES = 3
"""How often more is computed again where a program with transfers holds more than it should."""

STEPS = 4
"""Levels per role."""


@dataclass(frozen=True)
class Fitted:
    """A program that stays within a limit.

    Attributes:
        recomputed: The program whose activations are computed again.
        program: What a rank runs.
        offload: The labels of what waits in the host's memory between uses.
        peak_bytes: The most bytes that any rank holds at once; 0 if nobody asked.
        traffic: The transfers of what waits there.
    """

    recomputed: Recomputed
    program: Program
    offload: tuple[str, ...]
    peak_bytes: int
    traffic: Traffic

    @property
    def added_seconds(self) -> float:
        """What this adds to a step, in serialized seconds."""
        return self.recomputed.added_seconds + self.traffic.seconds

    @property
    def remarks(self) -> tuple[ReportEntry, ...]:
        """What the user should know."""
        if not self.offload:
            return self.recomputed.remarks
        detail = (
            f"{human_bytes(self.traffic.host_bytes)} in the host's memory between uses, of which"
            f" the device holds at most {human_bytes(self.traffic.device_bytes)}; transfers take"
            f" {human_seconds(self.traffic.transfer_seconds)} of a step{self._by_host}"
        )
        subject = counted(len(self.offload), "stored tensor")
        return (*self.recomputed.remarks, ReportEntry("offload", subject, detail))

    @property
    def _by_host(self) -> str:
        """What the host updates, in words."""
        count, seconds = len(self.traffic.updated), self.traffic.on_host.host
        if not count and not self.traffic.is_forced:
            return ""
        whole = counted(self.traffic.waiting, "parameter")
        return f"; the host updates {count} of {whole}, in {human_seconds(seconds)}"


class Fitter:
    """Makes one program fit into several limits of memory.

    Args:
        program: A partitioned program.
        cluster: Predicts seconds.
        offload: The labels of what waits in the host's memory; None where a limit decides.
        learned: What is known of other programs on the cluster; more is added.
        update: Who updates what waits there, the host or the device.
        looped: The program before microbatches were told apart, if they are in a loop.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        offload: tuple[str, ...] | None = None,
        learned: Learned | None = None,
        update: str = EITHER,
        looped: Looped | None = None,
    ) -> None:
        self.program, self._cluster, self._learned = program, cluster, learned
        self._given_update, self._looped = update, looped
        self._asked = () if offload is None else offload
        chooses = offload is None and cluster.host_link is not None
        self._levels = [self._asked, *(_levels(program) if chooses else ())]
        self._traffic: dict[tuple[str, ...], Traffic] = {}

    @cached_property
    def _update(self) -> str:
        """Who updates what waits; the device at once, where the host is never faster."""
        most, ports = self._levels[-1], self.program.signature.inputs
        if self._given_update != EITHER or len(self._levels) == 1:
            return self._given_update
        state = tuple(port.label for port in ports if port.role == ROLES[0])
        faster = any(may_be_on_host(self.program, each, self._cluster) for each in (state, most))
        return EITHER if faster else DEVICE

    @property
    def _grows(self) -> bool:
        """Whether levels take ever more time, as where the device updates."""
        return self._update == DEVICE

    @cached_property
    def _recomputer(self) -> Recomputer | LoopRecomputer:
        if self._looped is not None:
            return LoopRecomputer(self._looped, self._cluster, self._learned)
        return Recomputer(self.program, self._cluster, self._learned)

    def added_seconds(self, memory_bytes: int, below: float = math.inf) -> float:
        """Returns the serialized seconds that the fastest known program within a limit adds.

        Args:
            memory_bytes: The limit.
            below: What matters: infinity may be returned if it adds more.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is done.
        """
        least, misses = math.inf, []
        for level in self._levels:
            known = self._of(level)
            if known.seconds >= min(least, below):
                if self._grows:
                    break
                continue
            try:
                limit, most = memory_bytes + known.freed_bytes, min(least, below) - known.seconds
                added = self._recomputer.added_seconds(limit, most)
            except DoesNotFit as miss:
                misses.append((miss.offloaded(known.host_bytes, known.freed_bytes), level))
                continue
            least = min(least, added + known.seconds)
        if least == math.inf and below == math.inf:
            raise self._smallest(misses)
        return least

    def within(self, memory_bytes: int | None) -> Fitted:
        """Returns the fastest known program within a limit; None for no limit.

        Raises:
            DoesNotFit: If it needs more than the limit whatever is done.
        """
        if memory_bytes is None:
            return self._unlimited()
        best, misses = None, []
        for level in self._levels:
            known = self._of(level)
            if best is not None and known.seconds >= best.added_seconds:
                if self._grows:
                    break
                continue
            try:
                found = self._fitted(level, memory_bytes)
            except DoesNotFit as miss:
                misses.append((miss.offloaded(known.host_bytes, known.freed_bytes), level))
                continue
            if best is None or found.added_seconds < best.added_seconds:
                best = found
        if best is None:
            raise self._smallest(misses)
        return best

    def _unlimited(self) -> Fitted:
        if is_asked(self.program):
            recomputed = self._recomputer.within(None)
        else:
            recomputed = Recomputed(self.program, 0.0, 0)
        return self._offloaded(recomputed, self._asked, recomputed.peak_bytes)

    def _fitted(self, level: tuple[str, ...], memory_bytes: int) -> Fitted:
        freed = self._of(level).freed_bytes
        recomputed = self._recomputer.within(memory_bytes + freed)
        if not level:
            return self._offloaded(recomputed, level, recomputed.peak_bytes)
        found, over = self._offloaded(recomputed, level), 0
        # What is freed is known of the program as it is before anything is computed again.
        for _ in range(_TRIES):
            over += max(0, found.peak_bytes - memory_bytes)
            if found.peak_bytes <= memory_bytes or self._least_bytes > memory_bytes + freed - over:
                break
            recomputed = self._recomputer.within(memory_bytes + freed - over)
            found = self._offloaded(recomputed, level)
        if found.peak_bytes > memory_bytes:
            most = found.peak_bytes + freed
            raise DoesNotFit(most, memory_bytes + freed, stored_bytes=freed)
        return found

    @cached_property
    def _least_bytes(self) -> int:
        return self._recomputer.least_bytes

    def _smallest(self, misses: Sequence[tuple[DoesNotFit, tuple[str, ...]]]) -> DoesNotFit:
        """Returns the error of what needs least; how much that is exactly, if something waits."""
        miss, level = min(misses, key=lambda each: each[0].least_bytes)
        if not level:
            return miss
        found = self._offloaded(self._recomputer.within(self._least_bytes), level)
        return miss.at_least(found.peak_bytes)

    def _offloaded(
        self, recomputed: Recomputed, level: tuple[str, ...], peak_bytes: int | None = None
    ) -> Fitted:
        known = traffic_of(recomputed.program, level, self._cluster, self._update)
        program = OffloadState(level, known.updated)(recomputed.program)
        if peak_bytes is None:
            peak_bytes = peak_rank_timeline(program).peak_bytes
        return Fitted(recomputed, program, level, peak_bytes, known)

    def _of(self, level: tuple[str, ...]) -> Traffic:
        if level not in self._traffic:
            self._traffic[level] = traffic_of(self.program, level, self._cluster, self._update)
        return self._traffic[level]


def _levels(program: Program) -> Iterator[tuple[str, ...]]:
    """Yields what may wait in the host's memory, ever more of it, by label."""
    chosen: tuple[str, ...] = ()
    for role in ROLES:
        ports = [p for p in program.signature.inputs if p.role == role and p.shape]
        sizes = [value_bytes(program.main.values[port.name]) for port in ports]
        ends = list(accumulate(sizes))
        for step in range(1, STEPS + 1):
            labels = [
                port.label
                for port, end in zip(ports, ends, strict=True)
                if end * STEPS <= ends[-1] * step
            ]
            level = tuple(dict.fromkeys((*chosen, *labels)))
            if level != chosen:
                yield level
        chosen = tuple(dict.fromkeys((*chosen, *(port.label for port in ports))))
