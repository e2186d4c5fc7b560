"""Candidates: every way to compute an op that search considers.

Along each mesh axis an op is split along one of its factors, or lets a pending sum through, or
does neither. A factor of several sub-dimensions, as the program takes it apart elsewhere, may be
split within each of them. Nothing has to divide: a split that leaves processes without work is a
candidate like any other, and costs what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from autopar.completion.problem.cuts import Cuts
from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Call, Choice
from autopar.completion.problem.space import Form
from autopar.completion.problem.splits import Splits
from autopar.completion.search.effort import CUBE_WORK, WAY_WORK
from autopar.completion.search.watch import Watch
from autopar.ir.dims import DimLayout, SubDim, dim_axes, normalize_dim
from autopar.ir.expr.expression import Expr, IntExpr, exact_quotient
from autopar.ir.expr.facts import divides
from autopar.ir.expr.strides import order
from autopar.ir.program import Pending

SUM = "sum"

MAX_RUNS = 3
"""Into how many runs of neighbours that do the same the axes of a mesh may fall."""

MANY_AXES_RUNS = 2
"""The same where there are more axes than that: what they could do would be too much to try."""

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""


_Interface = tuple[tuple[Form, ...], tuple[Form, ...]]
"""What an op needs, and what it leaves."""


@dataclass(eq=False)
class Candidates:
    """The ways to compute ops that are alike.

    Attributes:
        choices: The ways.
        consumed: Per operand, the form of each way.
        produced: The same per result.
        seconds: What each takes, as far as it is known; of a body about.
        least_seconds: What each takes at least.
        alike: The ways that need and leave the same, itself included.
        lessons: How often something was learned of the seconds.
        least_lessons: The same of the least seconds.
        every: The candidates before some were left out; None if none were.
        instead: Per label of these, the label that takes its place.
    """

    choices: tuple[Choice, ...]
    consumed: tuple[tuple[Form, ...], ...]
    produced: tuple[tuple[Form, ...], ...]
    seconds: list[float]
    least_seconds: list[float]
    alike: tuple[tuple[Choice, ...], ...]
    lessons: int = 0
    least_lessons: int = 0
    every: Candidates | None = None
    instead: tuple[int, ...] = ()

    @classmethod
    def from_choices(cls, call: Call, choices: Iterable[Choice]) -> Candidates:
        """Returns candidates without those that need and leave what a faster one does."""
        best: dict[_Interface, tuple[Choice, float]] = {}
        least: dict[_Interface, float] = {}
        alike: dict[_Interface, list[Choice]] = {}
        for choice in choices:
            key = (choice.consumed, choice.produced)
            seconds = call.likely_seconds(choice)
            least[key] = min(call.least_seconds(choice), least.get(key, math.inf))
            alike.setdefault(key, []).append(choice)
            known = best.get(key)
            if known is None or seconds < known[1]:
                best[key] = choice, seconds
        kept = tuple(choice for choice, _ in best.values())
        consumed = tuple(zip(*(choice.consumed for choice in kept), strict=True))
        produced = tuple(zip(*(choice.produced for choice in kept), strict=True))
        likely = [seconds for _, seconds in best.values()]
        ways = tuple(map(tuple, alike.values()))
        return cls(kept, consumed, produced, likely, list(least.values()), ways)

    def only(self, instead: Sequence[int]) -> Candidates:
        """Returns the candidates that others don't take the place of.

        Args:
            instead: Per label, that of the candidate which takes its place; its own if it stays.
        """
        labels = [label for label, other in enumerate(instead) if label == other]
        number = {label: position for position, label in enumerate(labels)}
        return Candidates(
            tuple(self.choices[label] for label in labels),
            tuple(tuple(forms[label] for label in labels) for forms in self.consumed),
            tuple(tuple(forms[label] for label in labels) for forms in self.produced),
            [self.seconds[label] for label in labels],
            [self.least_seconds[label] for label in labels],
            tuple(self.alike[label] for label in labels),
            every=self,
            instead=tuple(number[other] for other in instead),
        )

    def learn(self, label: int) -> bool:
        """Prices a way exactly; returns whether that isn't what was expected."""
        seconds = self.choices[label].seconds
        changed = abs(seconds - self.seconds[label]) > ROUNDING * seconds
        self.seconds[label] = seconds
        self.lessons += changed
        return changed

    def learn_least(self, label: int) -> bool:
        """Prices a way and those like it; returns whether all take more than was known."""
        seconds = min(way.seconds for way in self.alike[label])
        is_more = seconds > self.least_seconds[label] * (1 + ROUNDING)
        if is_more:
            self.least_seconds[label] = seconds
            self.least_lessons += 1
        return is_more


@dataclass(frozen=True)
class Around:
    """A plan, and the axes along which others differ from it.

    Attributes:
        choices: The plan's, per op.
        axes: The axes.
    """

    choices: Sequence[Choice]
    axes: tuple[str, ...]


class CandidateTable:
    """The candidates of a graph's ops; those of equal ops are made once.

    Args:
        graph: The graph.
        watch: Counts the work; by default nobody does.
        around: What all plans are to have in common; nothing by default.
    """

    def __init__(
        self, graph: Graph, watch: Watch | None = None, around: Around | None = None
    ) -> None:
        self.graph = graph
        self.watch = watch or Watch()
        self.around = around
        self.space = graph.space
        self._known: dict[object, Candidates] = {}

    def candidates_of(self, node: Node) -> Candidates:
        """Returns the candidates of an op."""
        decided = self.graph.decided.get(node.index)
        if decided is not None:
            return self._only(node.call, decided)
        within = self.graph.shared(Cuts).within(node) if node.call.has_rule else {}
        settled = self.graph.settled.get(node.index)
        cuts = tuple(sorted((factor, tuple(sorted(s, key=order))) for factor, s in within.items()))
        known = None if self.around is None else self.around.choices[node.index]
        key = (node.call, cuts, settled, known)
        found = self._known.get(key)
        if found is None:
            ways: Iterable[Choice] = _ways(node.call, within)
            if self.around is not None and known is not None:
                ways = _ways_around(node.call, within, known, self.around.axes)
            if settled is not None:
                ways = [way for way in ways if _agrees(way, settled)] or [node.call.whole]
            found = self._known[key] = Candidates.from_choices(node.call, ways)
            self.watch.spend(WAY_WORK * len(found.choices))
        return found

    def likely_work(self) -> float:
        """Returns about the seconds that it takes to derive and to compare all candidates."""
        axes, kinds = len(self.space.axes), dict[object, int]()
        for node in self.graph.nodes:
            if node.index not in self.graph.decided and node.call.has_rule:
                within = self.graph.shared(Cuts).within(node)
                options = len(_options(node.call, within))
                if self.around is None:
                    kinds[node.call, options] = _assignment_count(axes, options)
                else:
                    known = self.around.choices[node.index]
                    kinds[node.call, options, known] = options ** len(self.around.axes)
        return sum(WAY_WORK * count + CUBE_WORK * count**3 for count in kinds.values())

    def _only(self, call: Call, choice: Choice) -> Candidates:
        found = self._known.get(choice)
        if found is None:
            found = self._known[choice] = Candidates.from_choices(call, [choice])
        return found


def _agrees(choice: Choice, settled: Splits) -> bool:
    places = choice.splits.places
    return all(places.get(axis) == place for axis, place in settled.places.items())


Stretch = tuple[str, IntExpr, IntExpr]
"""A factor, and the strides between which it is split."""

Row = tuple[int, ...]
"""Operands whose sums are let through."""

Option = Stretch | Row | None
"""What an axis does to an op."""


def _ways(call: Call, within: Mapping[str, frozenset[IntExpr]]) -> Iterator[Choice]:
    """Yields every choice of an op, the one that splits nothing first."""
    yield call.whole
    if not call.has_rule:
        return
    placing, axes = _Placing(call), call.space.axes
    for way in _assignments(len(axes), _options(call, within)):
        choice = _choice(placing, zip(axes, way, strict=True))
        if choice is not None:
            yield choice


def _ways_around(
    call: Call, within: Mapping[str, frozenset[IntExpr]], known: Choice, axes: Sequence[str]
) -> Iterator[Choice]:
    """Yields a choice of an op, and those that differ from it along some axes."""
    yield known
    if not call.has_rule:
        return
    placing, splits = _Placing(call), known.splits
    for axis in axes:
        splits = placing.table.without(splits, axis)
    pending = [each for each in known.dist.pending if each.axis not in axes]
    for way in product(_options(call, within), repeat=len(axes)):
        choice = _choice(placing, zip(axes, way, strict=True), splits, pending)
        if choice is not None:
            yield choice


def _options(call: Call, within: Mapping[str, frozenset[IntExpr]]) -> Sequence[Option]:
    """Returns what an axis may do to an op."""
    return [None, *_stretches(call, within), *_rows(call)]


def _assignments(axes: int, options: Sequence[Option]) -> Iterator[tuple[Option, ...]]:
    """Yields what the axes do, in few runs of neighbours that do the same."""
    most = _most_runs(axes)

    def extend(way: tuple[Option, ...], runs: int) -> Iterator[tuple[Option, ...]]:
        if len(way) == axes:
            yield way
            return
        for option in options:
            more = runs + (not way or way[-1] != option)
            if more <= most:
                yield from extend((*way, option), more)

    yield from extend((), 0)


def _assignment_count(axes: int, options: int) -> int:
    """Returns how many assignments there are."""
    return sum(
        math.comb(axes - 1, runs - 1) * options * (options - 1) ** (runs - 1)
        for runs in range(1, min(axes, _most_runs(axes)) + 1)
    )


def _most_runs(axes: int) -> int:
    return MAX_RUNS if axes <= MAX_RUNS else MANY_AXES_RUNS


def _choice(
    placing: _Placing,
    way: Iterable[tuple[str, Option]],
    splits: Splits | None = None,
    pending: Sequence[Pending] = (),
) -> Choice | None:
    """Returns the choice in which each axis does what it is said to; None if they don't fit.

    Args:
        placing: Of the op.
        way: Axes, and what they do.
        splits: What other axes do; by default nothing.
        pending: The sums that are pending along other axes.
    """
    call, splits, pending = placing.call, splits or placing.table.none, list(pending)
    for axis, option in way:
        if option is None:
            continue
        stretch = _stretch(option)
        if stretch is None:
            pending.append(
                Pending(axis, SUM, tuple(operand for operand in option if isinstance(operand, int)))
            )
            continue
        merged = placing.with_axis(splits, stretch, axis)
        if merged is None:
            return None
        splits = merged
    plain = call.choice(splits)
    if plain is None or not pending:
        return plain
    rows = call.rows(plain.dist.body)
    if any(each.operands not in rows for each in pending):
        return None
    return call.choice(splits, tuple(pending))


class _Placing:
    """Puts axes on stretches of an op's factors; what an axis alone does is derived once.

    Args:
        call: The op.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.table = call.space.table
        self._known: dict[tuple[Stretch, tuple[str, ...]], Splits] = {}

    def with_axis(self, splits: Splits, stretch: Stretch, axis: str) -> Splits | None:
        """Returns the splits with one more axis along a stretch; None if it doesn't fit.

        Axes that split the same stretch do so together: where it doesn't divide evenly, the blocks
        of one axis alone may have other boundaries.
        """
        factor, inner, outer = stretch
        there = dim_axes(splits.items.get(factor, ()))
        source = self._splits(stretch, (axis,))
        parts = self.table.mesh.axes_size((*there, axis))
        if there and not divides(parts, outer // inner):
            together = self._splits(stretch, there).items.get(factor)
            if splits.items[factor] == together:
                source = self._splits(stretch, (*there, axis))
        return self.table.merged(splits, axis, source) if axis in source.places else None

    def _splits(self, stretch: Stretch, axes: tuple[str, ...]) -> Splits:
        """Returns how the op is split if axes split a stretch, and no others anything."""
        found = self._known.get((stretch, axes))
        if found is None:
            found = self.table.splits_of({stretch[0]: _layout(self.call, stretch, axes)})
            self._known[stretch, axes] = found
        return found


def _stretches(call: Call, within: Mapping[str, frozenset[IntExpr]]) -> list[Stretch]:
    """Returns the factors that may be split, with the strides between which they are.

    A factor as a whole, and each of its sub-dimensions.
    """
    stretches: dict[Stretch, None] = {}
    for factor, size in call.rule.sizes.items():
        if factor not in call.splittable:
            continue
        stretches[factor, 1, size] = None
        strides = (s for s in within.get(factor, ()) if exact_quotient(size, s) is not None)
        for inner, outer in pairwise([1, *sorted(strides, key=order), size]):
            if exact_quotient(outer, inner) not in (None, 0, 1):
                stretches[factor, inner, outer] = None
    return list(stretches)


def _stretch(option: Stretch | Row) -> Stretch | None:
    match option:
        case (str(factor), int() | Expr() as inner, int() | Expr() as outer):
            return factor, inner, outer
    return None


def _layout(call: Call, stretch: Stretch, axes: tuple[str, ...]) -> DimLayout:
    """Returns the layout of a factor that axes split between two strides."""
    factor, inner, outer = stretch
    size = call.rule.sizes[factor]
    subs = (SubDim(size // outer), SubDim(outer // inner, axes), SubDim(inner))
    return normalize_dim(subs, call.space.mesh)


def _rows(call: Call) -> list[Row]:
    """Returns the operands whose sums may be pending together, of the op and its bodies."""
    bodies = ("", *(body.name for body in call.rule.bodies))
    return list(dict.fromkeys(row for body in bodies for row in call.rows(body)))
