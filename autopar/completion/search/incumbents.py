"""Incumbents: the presets that a searched plan has to beat.

Combinations of presets are completed as if the user had named them, the usual ones first; on large
programs only as many as are worth their time. Search starts from the best of them too. So an answer
is never worse than the best of them, and says so where it is none other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, islice, product

from autopar.base.errors import AnnotationError
from autopar.completion.presets.preset import Preset
from autopar.completion.presets.table import INCUMBENTS, KEEPING, preset_of
from autopar.completion.problem.graph import Graph
from autopar.completion.propagate.local_search import GAIN
from autopar.completion.propagate.solve import Solution
from autopar.completion.search.effort import BODY_WORK, PRESET_WORK
from autopar.completion.search.watch import Progress, Watch
from autopar.ir.mesh import ProcessMesh

FEW_AXES = 3
"""Up to so many axes may each do what they like."""

USUAL, LEAST = 6, 9
"""The first presets: of which the best is to be named beside the plan, and those that are completed
however large the program is, if one of them may be faster."""

ALWAYS = 2
"""The first presets, `data` on all axes and `replicate`: they are completed even when time is up,
so that no plan is slower than what everybody would try first."""

MOST_PRESETS = 36
"""Presets that are completed at most."""

MOST_OPS = 4_000
"""Ops that presets complete in sum."""

PROVEN = 0.01
"""Up to this gap a plan counts as proven: no other, and no preset, can be much faster."""


def strategies(mesh: ProcessMesh) -> Iterator[str]:
    """Yields combinations of presets, the usual ones first.

    Axes that do the same stand next to one another; data-parallel ones are the outer ones.
    """
    axes = _split_axes(mesh)
    ordered = sorted(_ways(len(axes)), key=_rank)
    for number, way in enumerate(ordered):
        if number == 1:
            yield _joined([preset_of("nothing")] * len(axes), axes)
        yield _joined([INCUMBENTS[preset] for preset in way], axes)


def leanest(mesh: ProcessMesh) -> Iterator[str]:
    """Yields the presets that keep least: `fsdp` along all axes, or along all but one."""
    axes = _split_axes(mesh)
    for other in (None, *axes):
        yield _joined([preset_of("weight") if a == other else KEEPING[0] for a in axes], axes)


def _split_axes(mesh: ProcessMesh) -> list[str]:
    return [axis for axis in mesh.dim_names if mesh.axis_size(axis) > 1]


def _joined(presets: Sequence[Preset], axes: Sequence[str]) -> str:
    """Returns the strategy of one preset per axis."""
    return ",".join(each.alone_on(axis) for each, axis in zip(presets, axes, strict=True))


def _rank(way: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Returns what orders the ways, the usual ones first; of many axes, runs count as one."""
    return sum(way if len(way) <= FEW_AXES else set(way)), way


def _ways(axes: int) -> Iterator[tuple[int, ...]]:
    """Yields what axes may do, as numbers: each anything; many, the outer and the inner ones."""
    if axes <= FEW_AXES:
        yield from product(range(len(INCUMBENTS)), repeat=axes)
        return
    for outer, inner in combinations_with_replacement(range(len(INCUMBENTS)), 2):
        for count in range(1, axes) if outer < inner else (axes,):
            yield (outer,) * count + (inner,) * (axes - count)


@dataclass(frozen=True)
class Incumbent:
    """A preset's plan.

    Attributes:
        strategy: The preset.
        solution: The plan.
        seconds: Its predicted seconds.
    """

    strategy: str
    solution: Solution
    seconds: float


class Incumbents:
    """The presets of a program, each completed once.

    Args:
        mesh: The mesh.
        complete: Completes the program by a strategy, or from the user's pins alone.
        graph: The program's.
        watch: Says when to stop.
    """

    def __init__(
        self,
        mesh: ProcessMesh,
        complete: Callable[[str | None], Solution],
        graph: Graph,
        watch: Watch,
    ) -> None:
        self._complete, self._ops, self._watch = complete, len(graph.nodes), watch
        self._work = PRESET_WORK * self._ops * mesh.ndim**2
        self._work += BODY_WORK * graph.kinds_with_bodies * mesh.ndim
        self._left = strategies(mesh)
        self._tried = 0
        self._found: list[Incumbent] = []

    def within(self, gap: float, told: Progress) -> Sequence[Incumbent]:
        """Returns the presets that are worth their time, the fastest first.

        Args:
            gap: How much faster than what is known a plan may be, as a part of its seconds.
            told: How far the search is.
        """
        most = _affordable(self._ops, gap)
        for strategy in islice(self._left, max(0, most - self._tried)):
            if self._tried >= ALWAYS and self._watch.is_late:
                break
            if self._tried >= USUAL and self._watch.is_half_spent:
                break
            self._tried += 1
            self._watch.spend(self._work)
            self._watch.tell(replace(told, doing=f"preset {self._tried} of {most}"))
            try:
                solution = self._complete(strategy)
            except AnnotationError:
                continue
            self._found.append(Incumbent(strategy, solution, solution.seconds))
        # Of those that take as long as one another, but for rounding, the first counts.
        least = min((each.seconds for each in self._found), default=0.0)
        return sorted(self._found, key=lambda each: max(each.seconds, least * (1 + GAIN)))

    def fallback(self) -> Solution:
        """Returns a plan for which there is always time: what follows from the pins alone."""
        return self._complete(None)


def _affordable(ops: int, gap: float) -> int:
    """Returns how many presets are worth their time."""
    affordable = MOST_OPS // max(1, ops)
    if gap <= PROVEN:
        return min(USUAL, affordable // 2)
    return min(MOST_PRESETS, max(LEAST, affordable))
