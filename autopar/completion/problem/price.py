"""Price: the seconds of all reshards of a value, as partition will carry them out.

A form that is there serves all that need it, and others are made from the nearest. What was
gathered is there for one phase only; what is no larger than the value was at first stays. Of a
whole plan, sums that nobody waits for travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from autopar.completion.problem.buckets import Buckets, DeferredSums, Steps
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form, Need, Windows
from autopar.cost.reshard.making import Making
from autopar.ir.program import Lifetime

Needs = tuple[tuple[int, int, tuple[Need, ...]], ...]
"""How a value is read in each lifetime that reads it, how often there is such a lifetime, and how
often what it needs is made for it if that may stay."""

Way = tuple[float, Steps]
"""Seconds, and the reshards that take them."""

NOWHERE: Way = (0.0, ())


class Price:
    """The seconds of the values of one graph; equal ones are computed once.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.space = graph.space
        self.buckets = Buckets(graph)
        self._known: dict[tuple[Form, Needs, int, bool], Way] = {}

    def total(self, choices: Sequence[Choice], forms: Sequence[Form]) -> float:
        """Returns the seconds of all ops and reshards, with sums joined.

        Args:
            choices: Per op.
            forms: Per value, how it is stored.
        """
        own = sum(choice.own_seconds for choice in choices)
        return own + self.moves(choices, forms, range(len(forms)))

    def moves(
        self, choices: Sequence[Choice], forms: Sequence[Form], values: Iterable[int]
    ) -> float:
        """Returns the seconds of the reshards of some values, with their sums joined.

        Args:
            choices: Per op.
            forms: Per value, how it is stored.
            values: The values.
        """
        ways = {value: self._way(choices, value, forms[value]) for value in values}
        return sum(way[0] for way in ways.values()) - self._saved_seconds(choices, ways)

    def _saved_seconds(self, choices: Sequence[Choice], ways: Mapping[int, Way]) -> float:
        """Returns what sums of values would take more if none travelled with others."""
        grouped = (
            (value, ways[value][1])
            for value in self.graph.shared(DeferredSums).group
            if value in ways
        )
        pending = ((value, way) for value, way in grouped if way and way[0][0].layout.partial)
        return sum(self.buckets.saved_seconds(choices, pending))

    def value(self, choices: Sequence[Choice], value: int, stored: Form) -> float:
        """Returns the seconds of a value's reshards, each by itself.

        Args:
            choices: Per op.
            value: The value.
            stored: How it is stored.
        """
        return self._way(choices, value, stored)[0]

    def _way(self, choices: Sequence[Choice], value: int, stored: Form) -> Way:
        graph = self.graph
        producer = graph.producer[value]
        first = stored
        needs: dict[Lifetime, dict[Need, None]] = {}
        if producer is not None:
            node, position = producer
            first = choices[node.index].leaves(position)
            if value in graph.outputs:
                if (
                    graph.pins[value] is None
                    and first is not choices[node.index].produced[position]
                ):
                    stored = self.space.complete(first)
                needs[node.left_in] = {stored: None}
            for need in choices[node.index].reads_again(position):
                needs.setdefault(node.left_in, {})[need] = None
        for node, position in graph.uses[value]:
            lifetime = node.lifetime
            needs.setdefault(lifetime, {}).update(
                dict.fromkeys(choices[node.index].reads(position))
            )
        ordered = sorted(needs, key=graph.lifetimes.__getitem__)
        is_deferred = graph.shared(DeferredSums).group_of(value) is not None
        return self._through(
            first,
            tuple(
                (each.times, graph.times_made(value, each), tuple(needs[each])) for each in ordered
            ),
            graph.itemsizes[value],
            is_deferred,
        )

    def _through(self, first: Form, needs: Needs, itemsize: int, is_deferred: bool) -> Way:
        """Returns how a value is brought from its first form to others, phase by phase."""
        if all(form is first for *_, forms in needs for form in forms):
            return NOWHERE
        key = (first, needs, itemsize, is_deferred)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new_way(*key)
        return found

    def _new_way(self, first: Form, needs: Needs, itemsize: int, is_deferred: bool) -> Way:
        space, reduced = self.space, self.space.complete(first)
        making: Making[Form] = Making(
            partial(space.reshard_seconds, itemsize=itemsize, deferred=is_deferred)
        )
        gathered = partial(space.is_gathered, first=first)
        lasting, total = [first], 0.0
        steps: Steps = ()
        known: set[Windows] = set()
        for times, made_for, phase in needs:
            forms = [need for need in phase if isinstance(need, Form)]
            windows = [need for need in phase if isinstance(need, Windows) and need not in known]
            made = making.made(lasting, forms, reduced, [each.ways for each in windows])
            total, steps = total + times * made.seconds, steps + made.steps
            if times > made_for:
                # What isn't gathered is made once, for all iterations.
                kept = (step for step in made.steps if not any(gathered(form) for form in step))
                total -= (times - made_for) * sum(making.seconds(*step) for step in kept)
            lasting += [form for _, form in made.steps if not gathered(form)]
            known.update(each for each in windows if not space.is_gathered(each.blocks, first))
        return total, steps
