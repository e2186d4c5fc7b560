"""Cut: where a training step is cut into the stages of a pipeline, if the user doesn't say.

With stages that take t seconds per microbatch, M microbatches, and c seconds to send what is read
behind a cut, and as long for its gradient, a step takes about

    the sum of all t and of all 2 c  +  (M - 1) times the largest t with the 2 c at both ends

as the first microbatch passes all stages, and the others follow as fast as the slowest of them lets
them. The ops are in an order in which a stage is a run of them, so dynamic programming finds the
cuts for which that is least (Subhlok and Vondran, 1995): the best ways to put the ops up to a place
into so many stages are those of which no other has both a smaller sum and a smaller largest one.

How much of c is waited for depends on the schedule. So there is a best way for each of several
parts of it, and of those the one that is taken has the shortest step when its tasks are laid out.

Seconds are those of the ops on one device, divided by the processes of a stage: how its ops are
split within it is decided later.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from autopar.cost import Cluster, CommunicationModel, evaluate
from autopar.ir.expr.expression import planned, prod
from autopar.ir.ops.shape.view import FREE
from autopar.ir.program import Function, Op, Program
from autopar.ir.stages import Stages
from autopar.partition.pipeline.schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    WEIGHT,
    Clock,
    Schedule,
    Task,
)

FINENESS = 0.01
"""Of a stage's seconds: of places that are less apart, the one with least to send is looked at."""

LEAST = 0.25
"""Of an even share of the seconds: what each stage has at least, however slow the links are."""

WAITED = (0.0, 0.25, 1.0)
"""Parts of what is sent that may be waited for."""

ROUNDING = 1e-9
"""Of seconds, which are differences of sums."""

PHASES = 2
"""There and back."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to put the first ops into stages.

    Attributes:
        slowest: Seconds of the slowest stage and of what it sends and gets, per microbatch.
        sent: Seconds of all that is sent, per microbatch.
        cuts: The ends of the stages, each the number of ops in front of it.
    """

    slowest: float
    sent: float
    cuts: tuple[int, ...]

    def then(self, seconds: float, got: float, sent: float, cut: int) -> Way:
        """Returns the way with one stage more.

        Args:
            seconds: What that takes.
            got, sent: What it takes to send what is read behind the cuts in front of it and behind.
            cut: How many ops there are up to its end.
        """
        slowest = max(self.slowest, seconds + PHASES * (got + sent))
        return Way(slowest, self.sent + sent, (*self.cuts, cut))


@dataclass(frozen=True)
class Costs:
    """What the forward ops of a microbatch take, and what is sent if they are cut apart.

    Attributes:
        seconds: Of the ops in front of each place, by the kind of task; updates are as gradients.
        sent: Per place, the seconds to send what is read behind it.
        microbatches: Their number.
    """

    seconds: Mapping[str, Sequence[float]]
    sent: Sequence[float]
    microbatches: int

    @cached_property
    def before(self) -> Sequence[float]:
        """Seconds of all ops in front of each place."""
        return [*map(sum, zip(*self.seconds.values(), strict=True))]

    def step_seconds(self, way: Way) -> float:
        """Returns about what a step takes."""
        return self.before[-1] + PHASES * way.sent + (self.microbatches - 1) * way.slowest

    def longest_stage(self, way: Way) -> float:
        """Returns how long a stage may be at most where a step takes no longer than this way."""
        if self.microbatches == 1:
            return self.before[-1]
        return (self.step_seconds(way) - self.before[-1]) / (self.microbatches - 1)

    def scheduled_seconds(self, way: Way, schedule: Schedule) -> float:
        """Returns what a step takes by a schedule."""
        ends = [*pairwise((0, *way.cuts))]
        pipeline = schedule.pipeline(len(ends) // schedule.turns, len(ends), self.microbatches)

        def seconds(task: Task) -> float:
            begin, end = ends[task.stage]
            return self.seconds[task.phase][end] - self.seconds[task.phase][begin]

        def delay(task: Task) -> float:
            cut = way.cuts[task.stage if task.phase == FORWARD else task.stage - 1]
            return self.sent[cut]

        return Clock.of(pipeline, schedule.order(pipeline), seconds, delay).seconds


def has_stages(program: Program) -> bool:
    """Returns whether the user put anything into a stage behind the first one."""
    return any(op.stage for op in program.main.ops)


def cut_into_stages(program: Program, axis: str, schedule: str, cluster: Cluster) -> Program:
    """Returns a program whose forward ops are in as many stages as a schedule wants.

    It stays as it is where it has fewer ops than that.

    Args:
        program: A serial program with a mesh.
        axis: The mesh axis along which stages lie.
        schedule: The name of the schedule.
        cluster: The hardware.
    """
    assert program.mesh is not None
    wanted = SCHEDULES[schedule]
    stages = program.mesh.axis_size(axis) * wanted.turns
    first = [op for op in program.main.ops if op.phase == "forward" and not op.microbatch]
    costs = costs_of(program, axis, cluster, first)
    ways = [way for part in WAITED if (way := best_way(costs, stages, part)) is not None]
    if not ways:
        return program
    way = min(ways, key=lambda each: costs.scheduled_seconds(each, wanted))
    return program.with_main(_staged(program.main, first, way.cuts))


def costs_of(program: Program, axis: str, cluster: Cluster, forward: Sequence[Op]) -> Costs:
    """Returns what the forward ops of a microbatch cost.

    Args:
        program, axis, cluster: See `cut_into_stages`.
        forward: The ops.
    """
    main, mesh = program.main, program.mesh
    assert mesh is not None
    share = mesh.axis_size(axis) / mesh.size
    microbatches = 1 + max(op.microbatch for op in main.ops)
    seconds = {task: [0.0] * (len(forward) + 1) for task in (FORWARD, BACKWARD, WEIGHT)}
    places = _Places(main, forward)
    for op, cost in zip(main.ops, evaluate(program, cluster).costs, strict=True):
        for place, part in places.of_op(op):
            often = microbatches if op.phase == "update" else 1
            seconds[places.task_of(op)][place + 1] += cost.compute_seconds * part * share / often
    model = CommunicationModel(cluster, mesh)
    sent = [
        model.point_to_point(nbytes * share, (axis,)) if nbytes else 0.0
        for nbytes in _sent_bytes(main, forward)
    ]
    before = {task: [*accumulate(each)] for task, each in seconds.items()}
    return Costs(before, sent, microbatches)


def best_way(costs: Costs, stages: int, waited: float = 1.0) -> Way | None:
    """Returns the way with which a step takes about the least time; None if there are too few ops.

    Args:
        costs: The costs.
        stages: How many stages there are.
        waited: What part of what is sent is waited for.
    """
    places = [0, *_worth_a_cut(costs, stages), len(costs.before) - 1]
    last = len(places) - 1
    if last < stages:
        return None
    before = [costs.before[place] for place in places]
    sent = [0.0, *(costs.sent[place] * waited for place in places[1:-1]), 0.0]
    even = _even(places, before, sent, stages)
    longest = costs.longest_stage(even) * (1 + ROUNDING)
    least = LEAST * before[-1] / stages * (1 - ROUNDING)
    ways: list[list[Way]] = [[Way(0.0, 0.0, ())], *([] for _ in places[1:])]
    for stage in range(stages):
        left = stages - 1 - stage
        further: list[list[Way]] = [[] for _ in places]
        for end in range(stage + 1, last) if left else [last]:
            if before[-1] - before[end] > left * longest:
                continue
            first = max(stage, bisect_left(before, before[end] - longest))
            behind = bisect_right(before, before[end] - least, hi=end)
            further[end] = _undominated(
                way.then(before[end] - before[begin], sent[begin], sent[end], places[end])
                for begin in range(first, behind)
                for way in ways[begin]
            )
        ways = further
    return min(ways[-1], key=lambda way: (costs.step_seconds(way), way.cuts), default=even)


def _even(
    places: Sequence[int], before: Sequence[float], sent: Sequence[float], stages: int
) -> Way:
    """Returns the way on which all stages take about as long."""
    way, begin = Way(0.0, 0.0, ()), 0
    for stage in range(1, stages + 1):
        wanted = max(bisect_left(before, before[-1] * stage / stages), begin + 1)
        end = min(wanted, len(places) - 1 - stages + stage)
        way = way.then(before[end] - before[begin], sent[begin], sent[end], places[end])
        begin = end
    return way


def _undominated(ways: Iterator[Way]) -> list[Way]:
    """Returns the ways of which none other is as good in both respects."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.slowest, way.sent, way.cuts)):
        if not kept or way.sent < kept[-1].sent:
            kept.append(way)
    return kept


def _worth_a_cut(costs: Costs, stages: int) -> list[int]:
    """Returns places to cut, of those next to one another the one with least to send."""
    step = FINENESS * costs.before[-1] / stages
    nearby: dict[int, list[int]] = defaultdict(list)
    for place in range(1, len(costs.before) - 1):
        nearby[int(costs.before[place] / step) if step else place].append(place)
    return [min(group, key=lambda place: (costs.sent[place], place)) for group in nearby.values()]


class _Places:
    """The positions of the forward ops with which all ops of a step go.

    Args:
        main: The step.
        forward: The forward ops of its first microbatch.
    """

    def __init__(self, main: Function, forward: Sequence[Op]) -> None:
        self._values = main.values
        numbered = (replace(op, stage=at) for at, op in enumerate(forward))
        backward = [op for op in main.ops if op.phase == "backward" and not op.microbatch]
        self._stages = Stages(replace(main, ops=(*numbered, *backward)))
        self._read: dict[str, int] = {}
        for at, op in enumerate(forward):
            for name in op.operands:
                self._read.setdefault(name, at)

    def task_of(self, op: Op) -> str:
        """Returns the kind of task of which an op is a part."""
        if op.phase == FORWARD:
            return FORWARD
        return WEIGHT if op.phase == "update" or op.results in self._stages.gradients else BACKWARD

    def of_op(self, op: Op) -> list[tuple[int, float]]:
        """Returns positions, each with the part of an op that goes there; none if it's elsewhere.

        An update goes with the first readers of its parameters.
        """
        if op.phase != "update":
            place = self._stages.found.get(op.results)
            return [] if place is None else [(place, 1.0)]
        sizes = {
            name: planned(prod(self._values[name].shape))
            for name in op.operands
            if name in self._read
        }
        whole = sum(sizes.values())
        return [(self._read[name], size / whole) for name, size in sizes.items() if size]


def _sent_bytes(main: Function, forward: Sequence[Op]) -> list[int]:
    """Returns, per place, the bytes of what is made in front of it and read behind.

    What only rearranges inputs, or is made of nothing, is made where it is read.
    """
    late: set[str] = set()
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, op in enumerate(forward):
        if (not op.operands or op.kind in FREE) and all(
            name in late or name not in made for name in op.operands
        ):
            late.update(op.results)
        made.update(dict.fromkeys(op.results, at))
        last.update((name, at) for name in op.operands if name in made and name not in late)
    change = [0] * (len(forward) + 1)
    for name, at in last.items():
        value = main.values[name]
        nbytes = planned(prod(value.shape)) * value.itemsize
        change[made[name] + 1] += nbytes
        change[at + 1] -= nbytes
    return [*accumulate(change)]


def _staged(main: Function, first: Sequence[Op], cuts: Sequence[int]) -> Function:
    """Returns the function with its forward ops in stages.

    Those of later microbatches are those of the first one again, but for what is computed once.
    """
    at: dict[int, int] = defaultdict(int)
    ops = []
    for op in main.ops:
        stage = op.stage
        if op.phase == "forward":
            place = at[op.microbatch]
            while place < len(first) and not _is_alike(first[place], op):
                place += 1
            if place < len(first):
                at[op.microbatch] = place + 1
                stage = bisect_right(cuts, place)
        ops.append(replace(op, stage=stage))
    return replace(main, ops=tuple(ops))


def _is_alike(op: Op, other: Op) -> bool:
    return op.kind == other.kind and op.loc == other.loc
