"""Widths: at how many indices of a pipeline's axis each of its stages is, if nobody says so.

The same dynamic program as that of cuts, over cuts and widths together: the best ways to put the
ops up to a place into so many stages at so many indices. A stage at several indices computes as if
its batch were split along them, and sums up its gradients once a step; how it is split indeed is
decided later. With fewer and wider stages a step is always shorter by that, so of each number of
stages the best widths are proposed, and who asks compares them by plans.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.ir.stages import Stages, has_stages
from autopar.partition.pipeline.runs import Widths
from autopar.planning.cut import LEAST, ROUNDING, best_way, undominated, worth_a_cut
from autopar.planning.cut_costs import Costs, Way, costs_of, first_of

MOST_PLACES = 128
"""Of more places than that to cut a model, those are looked at that are far enough apart."""

MOST_STAGES = 8
"""Up to how many stages each number of them is looked at; of more, as many as there are indices."""


def proposed_widths(program: Program, axis: str, cluster: Cluster) -> tuple[Widths, ...]:
    """Returns widths that may be the best, those with which a step takes least about first.

    Where a process has several stages, widths are those that would be best with one stage each.

    Args:
        program: A serial program with a mesh.
        axis: The mesh axis along which stages lie.
        cluster: The hardware.
    """
    mesh = program.mesh
    assert mesh is not None
    size = mesh.axis_size(axis)
    if has_stages(program.main):
        costs = _costs_of_stages(program, axis, cluster)
        counts: Sequence[int] = [*range(2, min(size, len(costs.before) - 1) + 1)]
    else:
        costs = costs_of(program, axis, cluster, first_of(program.main))
        counts = [*range(2, min(size, MOST_STAGES + 1)), size]
    ways = (best_widths(costs, count, size) for count in dict.fromkeys(counts) if count > 1)
    found = {way.widths: costs.step_seconds(way) for way in ways if way is not None}
    return tuple(sorted(found, key=lambda widths: found[widths]))


def best_widths(costs: Costs, stages: int, indices: int, waited: float = 1.0) -> Way | None:
    """Returns the way with which a step takes about least; None if there are too few ops.

    Args:
        costs: The costs.
        stages: How many stages there are.
        indices: How many indices of the axis they have together.
        waited: What part of what is sent is waited for.
    """
    few, more = divmod(indices, stages)
    start = best_way(costs, (few + 1,) * more + (few,) * (stages - more), waited)
    if start is None:
        return None
    return _Widening(costs, stages, indices, waited, start).best()


class _Widening:
    """The dynamic program; see `best_widths`."""

    def __init__(self, costs: Costs, stages: int, indices: int, waited: float, start: Way) -> None:
        self._costs, self._stages, self._indices, self._start = costs, stages, indices, start
        between = [*range(1, len(costs.before) - 1)]
        if len(between) > MOST_PLACES:
            between = worth_a_cut(costs, 1, 1 / MOST_PLACES)
        self._places = [0, *between, len(costs.before) - 1]
        self._before = [costs.before[place] for place in self._places]
        weight = waited * costs.travels
        self._sent = [0.0, *(costs.sent[place] * weight for place in between), 0.0]
        self._widest = indices - stages + 1
        self._longest = costs.longest_stage(start, self._widest) * (1 + ROUNDING)
        self._least = LEAST * self._before[-1] / indices * (1 - ROUNDING)

    def best(self) -> Way:
        """Returns the best way; the one to start with if no other one is as good."""
        ways: dict[tuple[int, int], list[Way]] = {(0, 0): [Way(0.0, 0.0, ())]}
        last = len(self._places) - 1
        for stage in range(self._stages):
            left = self._stages - 1 - stage
            grown: dict[tuple[int, int], list[Way]] = defaultdict(list)
            for end in range(stage + 1, last + 1 - left) if left else [last]:
                for used in range(stage + 1, self._indices - left + 1):
                    if (used == self._indices) != (left == 0):
                        continue
                    found = undominated(self._reaching(ways, end, used))
                    if found:
                        grown[end, used] = found
            ways = grown
        every: list[Way] = [self._start, *ways.get((last, self._indices), ())]
        return min(every, key=lambda way: (self._costs.step_seconds(way), way.cuts))

    def _reaching(
        self, ways: dict[tuple[int, int], list[Way]], end: int, used: int
    ) -> Iterator[Way]:
        """Yields the ways with one stage more that ends at a place, with so many indices."""
        before, sent, places = self._before, self._sent, self._places
        for width in range(1, min(used, self._widest) + 1):
            first = bisect_left(before, before[end] - self._longest * width)
            behind = bisect_right(before, before[end] - self._least * width, hi=end)
            for begin in range(first, behind):
                for way in ways.get((begin, used - width), ()):
                    seconds = self._costs.stage_seconds(places[begin], places[end], width)
                    yield way.then(seconds, sent[begin], sent[end], places[end], width)


def _costs_of_stages(program: Program, axis: str, cluster: Cluster) -> Costs:
    """Returns the costs of stages that the user has marked, between which alone may be cut."""
    forward = first_of(program.main)
    fine = costs_of(program, axis, cluster, forward)
    stages = Stages(program.main).found
    at = [stages.get(op.results, op.stage) for op in forward]
    count = 1 + max(at)

    def summed(before: Sequence[float]) -> list[float]:
        own = [0.0] * (count + 1)
        for place, stage in enumerate(at):
            own[stage + 1] += before[place + 1] - before[place]
        return [sum(own[: end + 1]) for end in range(count + 1)]

    return Costs(
        {task: summed(each) for task, each in fine.seconds.items()},
        [0.0] * (count + 1),
        fine.microbatches,
        fine.trains,
        summed(fine.stored),
        fine.reduced,
    )
