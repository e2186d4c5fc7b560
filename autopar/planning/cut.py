"""Cut: where a model is cut into the stages of a pipeline, if the user doesn't say.

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
split within it is decided later. A stage may be at several indices of the axis, which shortens it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autopar.cost import Cluster
from autopar.ir.program import Function, Op, Program
from autopar.partition.pipeline.runs import Widths
from autopar.partition.pipeline.schedules import SCHEDULES, Schedule
from autopar.planning.cut_costs import Costs, Way, costs_of, first_of

FINENESS = 0.01
"""Of a stage's seconds: of places that are less apart, the one with least to send is looked at."""

LEAST = 0.25
"""Of an even share of the seconds: what each stage has at least, however slow the links are."""

WAITED = (0.0, 0.25, 1.0)
"""Parts of what is sent that may be waited for."""

ROUNDING = 1e-9
"""Of seconds, which are differences of sums."""


def cut_into_stages(
    program: Program, axis: str, schedule: str, cluster: Cluster, widths: Widths = ()
) -> Program:
    """Returns a program whose forward ops are in as many stages as a schedule wants.

    It stays as it is where it has fewer ops than that.

    Args:
        program: A serial program with a mesh.
        axis: The mesh axis along which stages lie.
        schedule: The name of the schedule.
        cluster: The hardware.
        widths: At how many indices of the axis the processes of stages are; none: at one each.
    """
    assert program.mesh is not None
    wanted = SCHEDULES[schedule]
    widths = widths or (1,) * program.mesh.axis_size(axis)
    stages = widths_of_stages(wanted, widths)
    first = first_of(program.main)
    costs = costs_of(program, axis, cluster, first)
    ways = [way for part in WAITED if (way := best_way(costs, stages, part)) is not None]
    if not ways:
        return program
    way = min(ways, key=lambda each: costs.scheduled_seconds(each, wanted, widths))
    return program.with_main(_staged(program.main, first, way.cuts))


def widths_of_stages(schedule: Schedule, widths: Widths) -> Widths:
    """Returns at how many indices each stage is, given that of the processes of a schedule."""
    count = len(widths) * schedule.turns
    pipeline = schedule.pipeline(len(widths), count, 1)
    return tuple(widths[pipeline.process_of(stage)] for stage in range(count))


def best_way(costs: Costs, stages: int | Widths, waited: float = 1.0) -> Way | None:
    """Returns the way with which a step takes about the least time; None if there are too few ops.

    Args:
        costs: The costs.
        stages: How many stages there are, or at how many indices of the axis each is.
        waited: What part of what is sent is waited for.
    """
    widths = (1,) * stages if isinstance(stages, int) else stages
    places = [0, *worth_a_cut(costs, sum(widths)), len(costs.before) - 1]
    last = len(places) - 1
    if last < len(widths):
        return None
    before = [costs.before[place] for place in places]
    weight = waited * costs.travels
    sent = [0.0, *(costs.sent[place] * weight for place in places[1:-1]), 0.0]

    def took(begin: int, end: int, width: int) -> float:
        return costs.stage_seconds(places[begin], places[end], width)

    even = _even(places, before, sent, widths, took)
    longest = costs.longest_stage(even, max(widths)) * (1 + ROUNDING)
    least = LEAST * before[-1] / sum(widths) * (1 - ROUNDING)
    ways: list[list[Way]] = [[Way(0.0, 0.0, ())], *([] for _ in places[1:])]
    for stage, width in enumerate(widths):
        left = widths[stage + 1 :]
        further: list[list[Way]] = [[] for _ in places]
        for end in range(stage + 1, last) if left else [last]:
            if before[-1] - before[end] > sum(left) * longest:
                continue
            first = max(stage, bisect_left(before, before[end] - longest * width))
            behind = bisect_right(before, before[end] - least * width, hi=end)
            further[end] = undominated(
                way.then(took(begin, end, width), sent[begin], sent[end], places[end], width)
                for begin in range(first, behind)
                for way in ways[begin]
            )
        ways = further
    return min(ways[-1], key=lambda way: (costs.step_seconds(way), way.cuts), default=even)


def _even(
    places: Sequence[int],
    before: Sequence[float],
    sent: Sequence[float],
    widths: Widths,
    took: Callable[[int, int, int], float],
) -> Way:
    """Returns the way on which all stages take about as long."""
    way, begin = Way(0.0, 0.0, ()), 0
    for stage, width in enumerate(widths):
        share = sum(widths[: stage + 1]) / sum(widths)
        wanted = max(bisect_left(before, before[-1] * share), begin + 1)
        end = min(wanted, len(places) - len(widths) + stage)
        way = way.then(took(begin, end, width), sent[begin], sent[end], places[end], width)
        begin = end
    return way


def undominated(ways: Iterator[Way]) -> list[Way]:
    """Returns the ways of which none other is as good in both respects."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.slowest, way.once, way.cuts)):
        if not kept or way.once < kept[-1].once:
            kept.append(way)
    return kept


def worth_a_cut(costs: Costs, stages: int, fineness: float = FINENESS) -> list[int]:
    """Returns places to cut, of those next to one another the one with least to send."""
    step = fineness * costs.before[-1] / stages
    nearby: dict[int, list[int]] = defaultdict(list)
    for place in range(1, len(costs.before) - 1):
        nearby[int(costs.before[place] / step) if step else place].append(place)
    return [min(group, key=lambda place: (costs.sent[place], place)) for group in nearby.values()]


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
