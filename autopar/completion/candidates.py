"""Candidates: every way to compute an op that search considers.

Along each mesh axis an op is split along one of its factors, or lets a pending sum through, or
does neither. A factor of several sub-dimensions, as the program takes it apart elsewhere, may be
split within each of them. Nothing has to divide: a split that leaves processes without work is a
candidate like any other, and costs what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autopar.completion.call import Call, Choice
from autopar.completion.graph import Graph, Node
from autopar.completion.space import Form
from autopar.completion.splits import Splits
from autopar.ir.layout import DimLayout, SubDim, normalize_dim
from autopar.ir.program import Pending

SUM = "sum"


@dataclass(frozen=True, eq=False)
class Candidates:
    """The ways to compute ops that are alike.

    Attributes:
        choices: The ways.
        consumed: Per operand, the form of each way.
        produced: The same per result.
    """

    choices: tuple[Choice, ...]
    consumed: tuple[tuple[Form, ...], ...]
    produced: tuple[tuple[Form, ...], ...]

    @classmethod
    def of(cls, choices: Iterable[Choice]) -> Candidates:
        """Returns candidates without those that need and leave what a faster one does."""
        best: dict[tuple[tuple[Form, ...], tuple[Form, ...]], Choice] = {}
        for choice in choices:
            key = (choice.consumed, choice.produced)
            known = best.get(key)
            if known is None or choice.seconds < known.seconds:
                best[key] = choice
        kept = tuple(best.values())
        consumed = tuple(zip(*(choice.consumed for choice in kept), strict=True))
        produced = tuple(zip(*(choice.produced for choice in kept), strict=True))
        return cls(kept, consumed, produced)


class CandidateTable:
    """The candidates of a graph's ops; those of equal ops are made once.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.space = graph.space
        self._known: dict[object, Candidates] = {}

    def of(self, node: Node, more: Sequence[Choice] = ()) -> Candidates:
        """Returns the candidates of an op, and further choices of it."""
        decided = self.graph.decided.get(node.index)
        if decided is not None:
            return self._only(decided)
        within = self.graph.cuts.within(node) if node.call.has_rule else {}
        settled = self.graph.settled.get(node.index)
        cuts = tuple(sorted((factor, tuple(sorted(s))) for factor, s in within.items()))
        key = (node.call, cuts, settled, tuple(more))
        found = self._known.get(key)
        if found is None:
            ways = [*_ways(node.call, within), *more]
            if settled is not None:
                ways = [way for way in ways if _agrees(way, settled)] or [node.call.whole]
            found = self._known[key] = Candidates.of(ways)
        return found

    def _only(self, choice: Choice) -> Candidates:
        found = self._known.get(choice)
        if found is None:
            found = self._known[choice] = Candidates.of([choice])
        return found


def _agrees(choice: Choice, settled: Splits) -> bool:
    places = choice.splits.places
    return all(places.get(axis) == place for axis, place in settled.places.items())


def _ways(call: Call, within: dict[str, frozenset[int]]) -> Iterator[Choice]:
    """Yields every choice of an op, the one that splits nothing first."""
    yield call.whole
    if not call.has_rule:
        return
    for splits in _all_splits(call, within):
        plain = call.choice(splits)
        if plain is None:
            continue
        if splits.items:
            yield plain
        free = [axis for axis in call.space.axes if axis not in splits.places]
        for pending in _flows(call, plain.dist.body, free):
            choice = call.choice(splits, pending)
            if choice is not None:
                yield choice


def _all_splits(call: Call, within: dict[str, frozenset[int]]) -> list[Splits]:
    """Returns the splits of an op's factors: per axis one, or none."""
    table = call.space.table
    found = {table.none: None}
    for axis in call.space.axes:
        alone = [
            table.of({factor: layout})
            for factor in call.rule.sizes
            if factor in call.splittable
            for layout in _layouts(call, factor, axis, within.get(factor, frozenset()))
        ]
        for splits in list(found):
            for source in alone:
                merged = table.merged(splits, axis, source)
                if merged is not None:
                    found[merged] = None
    return list(found)


def _layouts(call: Call, factor: str, axis: str, strides: frozenset[int]) -> list[DimLayout]:
    """Returns the layouts of a factor that an axis splits, between its sub-dimensions too."""
    size, mesh = call.rule.sizes[factor], call.space.mesh
    found: dict[DimLayout, None] = {normalize_dim((SubDim(size, (axis,)),), mesh): None}
    ends = [1, *sorted(stride for stride in strides if size % stride == 0), size]
    for inner, outer in pairwise(ends):
        if outer % inner == 0 and outer > inner:
            subs = (SubDim(size // outer), SubDim(outer // inner, (axis,)), SubDim(inner))
            found[normalize_dim(subs, mesh)] = None
    return list(found)


def _flows(call: Call, body: str, axes: Sequence[str]) -> Iterator[tuple[Pending, ...]]:
    """Yields the ways in which sums that are pending over some of the axes flow through an op."""
    rows = call.rows(body, SUM)
    if not rows:
        return
    ways: list[tuple[Pending, ...]] = [()]
    for axis in axes:
        more = [(*way, Pending(axis, SUM, row)) for way in ways for row in rows]
        ways += more
    yield from ways[1:]
