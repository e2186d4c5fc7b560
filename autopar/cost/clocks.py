"""Clocks: when each op is done on each kind of rank, all of them at once.

A rank runs its ops in order. It starts some collectives as soon as it comes to them, one after the
other, until somebody reads what they leave, and waits for others where they stand. Transfers to the
host and back run beside both, those of a direction one after the other, until they are awaited.
What the host computes begins when its operands are there, beside what the device was told before;
what stands behind it the device is told when the host is done.

Ranks on different slices of the mesh run different programs, of which one waits for another where
they communicate: what moves between slices begins when all who take part have come to it. Such
moves run beside all others, those between the same slices one after the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autopar.cost.op_cost import OpCost
from autopar.ir.collectives import declared
from autopar.ir.emitted import END_OFFLOAD
from autopar.ir.memory.transfers import ENDED, STARTED
from autopar.ir.program import Function, Op

Key = str
"""A collective between slices: the name of its result, which all programs have in common."""


@dataclass(frozen=True)
class Run:
    """A program that a rank runs.

    Attributes:
        function: The program.
        costs: What its ops take.
        links: By position, what an op moves between slices: moves of one name follow one another.
        calls: By position, when all that a call does is done, with what runs side by side in it.
    """

    function: Function
    costs: Sequence[OpCost]
    links: Mapping[int, str]
    calls: Mapping[int, float]


@dataclass
class Clock:
    """What became of a rank that ran its program.

    Attributes:
        begin_seconds, end_seconds: When each op begins and is done, by position.
        computed_seconds: When the device is done.
        waited_seconds: How long it had nothing to do before.
    """

    begin_seconds: list[float]
    end_seconds: list[float]
    computed_seconds: float = 0.0
    waited_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """When all is done."""
        return max(self.end_seconds, default=0.0)


@dataclass
class _Meeting:
    """A move between slices, until all who take part have come to it.

    Attributes:
        missing: How many haven't.
        begin: When the last of them came.
        end: When it is done; None until it is known.
        seconds: What it takes.
        arrived: The ranks and positions that have come.
    """

    missing: int
    begin: float = 0.0
    end: float | None = None
    seconds: float = 0.0
    arrived: list[tuple[_Rank, int]] = field(default_factory=list)

    def arrive(self, rank: _Rank, at: int, known: float, seconds: float) -> None:
        """Notes that a rank has come to it at a time, and what it takes there."""
        self.missing -= 1
        self.begin, self.seconds = max(self.begin, known), max(self.seconds, seconds)
        self.arrived.append((rank, at))
        if not self.missing:
            self.end = self.begin + self.seconds
            for each, position in self.arrived:
                each.met(position, self.begin, self.end)


class _Rank:
    """A rank under way through its program.

    Args:
        run: The program.
        meetings: The moves between slices, by their keys.
    """

    def __init__(self, run: Run, meetings: Mapping[Key, _Meeting]) -> None:
        count = len(run.costs)
        self.clock = Clock([0.0] * count, [0.0] * count)
        self._run, self._meetings = run, meetings
        self._computed = self._communicated = self._told = 0.0
        self._links: dict[str, float] = defaultdict(float)
        self._transferred = dict.fromkeys(STARTED, 0.0)
        self._ready: dict[str, float] = {}
        self._unmet: set[Key] = set()

    def waits(self) -> Iterator[Key]:
        """Runs the program, and yields each move between slices that it has to wait for."""
        for at, (op, cost) in enumerate(zip(self._run.function.ops, self._run.costs, strict=True)):
            if self._unmet:
                yield from self._unmet.intersection(op.operands)
            known = max((self._ready.get(name, 0.0) for name in op.operands), default=0.0)
            known = max(known, self._told)
            link = self._run.links.get(at)
            if link is None:
                seconds, sends = self._run.calls.get(at), cost.communication_seconds > 0
                if seconds is None:
                    self._note(at, *self._timed(op, cost, known))
                else:
                    self._note(at, *self._called(seconds, known, sends=sends))
                continue
            key = op.results[0]
            self._unmet.add(key)
            known = max(known, self._computed, self._links[link])
            meeting = self._meetings[key]
            meeting.arrive(self, at, known, cost.seconds)
            if not self._is_async(op):
                yield key
                self._compute(meeting.begin, self._ready[key])

    def met(self, at: int, begin: float, end: float) -> None:
        """Notes when a move to which it came was carried out."""
        link = self._run.links[at]
        self._links[link] = max(self._links[link], end)
        self._unmet.discard(self._run.function.ops[at].results[0])
        self._note(at, begin, end)

    def _note(self, at: int, begin: float, end: float) -> None:
        self.clock.begin_seconds[at], self.clock.end_seconds[at] = begin, end
        self._ready.update(dict.fromkeys(self._run.function.ops[at].results, end))

    def _timed(self, op: Op, cost: OpCost, known: float) -> tuple[float, float]:
        """Returns when an op begins and is done.

        Args:
            op: The op.
            cost: What it takes.
            known: When all that it reads is there.
        """
        if cost.host_seconds:
            self._told = known + cost.host_seconds
            return known, self._told
        if op.kind in STARTED:
            begin = max(self._transferred[op.kind], self._computed, known)
            end = self._transferred[op.kind] = begin + cost.seconds
            return begin, end
        if op.kind in ENDED:
            begin = end = max(self._computed, known)
            if op.kind == END_OFFLOAD:
                # The device waits to give the memory back; the host may read what has arrived.
                self._compute(begin, end)
                return known, known
        elif not cost.communication_seconds:
            if not cost.compute_seconds:
                return known, known
            begin = max(self._computed, known)
            end = begin + cost.compute_seconds
        else:
            begin = max(self._communicated, self._computed, known)
            end = self._communicated = begin + cost.seconds
            if self._is_async(op):
                return begin, end
        self._compute(begin, end)
        return begin, end

    def _called(self, seconds: float, known: float, *, sends: bool) -> tuple[float, float]:
        """Returns when a call begins and is done.

        Args:
            seconds: What it takes.
            known: When all that it reads is there.
            sends: Whether it communicates: it does so behind what is under way.
        """
        begin = max(self._communicated if sends else 0.0, self._computed, known)
        end = begin + seconds
        if sends:
            self._communicated = end
        self._compute(begin, end)
        return begin, end

    def _compute(self, begin: float, end: float) -> None:
        """Notes that the device has something to do."""
        self.clock.waited_seconds += max(0.0, begin - self._computed)
        self._computed = self.clock.computed_seconds = max(self._computed, end)

    def _is_async(self, op: Op) -> bool:
        """Whether the runtime starts a collective."""
        dtype = self._run.function.values[op.results[0]].dtype
        return declared(op.kind).is_async(op.arg("monoid"), dtype)


def clocks(runs: Sequence[Run]) -> tuple[Clock, ...]:
    """Returns what becomes of ranks that run together.

    Args:
        runs: The program of a rank of each kind.

    Raises:
        ValueError: If ranks wait for one another for ever: their communication was not proven.
    """
    keys = Counter(run.function.ops[at].results[0] for run in runs for at in run.links)
    meetings = {key: _Meeting(count) for key, count in keys.items()}
    ranks = [_Rank(run, meetings) for run in runs]
    running = deque(rank.waits() for rank in ranks)
    waiting: dict[Key, list[Iterator[Key]]] = defaultdict(list)
    while running:
        waits = running.popleft()
        key = next((key for key in waits if meetings[key].end is None), None)
        if key is not None:
            waiting[key].append(waits)
        for met in [key for key in waiting if meetings[key].end is not None]:
            running.extend(waiting.pop(met))
    if waiting:
        raise ValueError(f"ranks wait for ever for {', '.join(waiting)}")
    return tuple(rank.clock for rank in ranks)
