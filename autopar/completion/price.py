"""Price: the seconds of all reshards of a value, as partition will carry them out.

A form that is there serves all that need it, and others are made from the nearest. What was
gathered is there for one phase only; what is no larger than the value was at first stays. Of a
whole plan, sums that nobody waits for travel together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from operator import itemgetter

from autopar.completion.buckets import Buckets, Filled, Steps
from autopar.completion.call import Choice
from autopar.completion.graph import Graph
from autopar.completion.space import Form

MAX_ORDERED = 4
"""Up to so many forms all orders of making them are compared, as partition does."""

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""

Needs = tuple[tuple[Form, ...], ...]
"""The forms that are needed in each phase of a microbatch that reads a value."""

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
        ways = [self._way(choices, value, form) for value, form in enumerate(forms)]
        saved = sum(bucket.saved_seconds for bucket in self._filled(choices, ways))
        return sum(choice.seconds for choice in choices) + sum(way[0] for way in ways) - saved

    def _filled(self, choices: Sequence[Choice], ways: Sequence[Way]) -> Iterator[Filled]:
        """Returns the buckets in which a plan's sums travel."""
        found = ((value, ways[value][1]) for value in self.graph.waiting.group)
        pending = ((value, way) for value, way in found if way and way[0][0].layout.partial)
        return self.buckets.filled(choices, pending)

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
        needs: dict[tuple[str, int], dict[Form, None]] = {}
        if producer is not None:
            node, at = producer
            first = choices[node.index].leaves(at)
            if value in graph.outputs:
                if graph.pins[value] is None and first is not choices[node.index].produced[at]:
                    stored = self.space.complete(first)
                needs[node.op.phase, node.op.microbatch] = {stored: None}
        for node, at in graph.uses[value]:
            lifetime = node.op.phase, node.op.microbatch
            needs.setdefault(lifetime, {})[choices[node.index].consumed[at]] = None
        ordered = sorted(needs, key=graph.lifetimes.__getitem__)
        waits = graph.waiting.group_of(value) is not None
        return self._through(
            first, tuple(tuple(needs[at]) for at in ordered), graph.itemsizes[value], waits
        )

    def _through(self, first: Form, needs: Needs, itemsize: int, waits: bool) -> Way:
        """Returns how a value is brought from its first form to others, phase by phase."""
        if all(form is first for forms in needs for form in forms):
            return NOWHERE
        key = (first, needs, itemsize, waits)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new_way(*key)
        return found

    def _new_way(self, first: Form, needs: Needs, itemsize: int, waits: bool) -> Way:
        lasting, total = [first], 0.0
        steps: Steps = ()
        for forms in needs:
            missing = [form for form in forms if form not in lasting]
            seconds, made = self._made(lasting, missing, itemsize, waits)
            total, steps = total + seconds, steps + made
            lasting += [form for _, form in made if not self.space.is_gathered(form, first)]
        return total, steps

    def _made(
        self, there: Sequence[Form], missing: Sequence[Form], itemsize: int, waits: bool
    ) -> Way:
        """Returns how forms are made, each from the nearest of those before it.

        A pending value may be reduced on the way, as by partition.
        """
        if not 0 < len(missing) <= MAX_ORDERED:
            return self._in_order(there, missing, itemsize, waits)
        reduced = self.space.complete(there[0])
        plain = self._least(there, permutations(missing), itemsize, waits)
        if reduced in there or reduced in missing:
            return plain
        by_way = self._least(there, permutations((reduced, *missing)), itemsize, waits)
        return by_way if by_way[0] <= plain[0] * (1 + ROUNDING) else plain

    def _least(
        self,
        there: Sequence[Form],
        orders: Iterable[Sequence[Form]],
        itemsize: int,
        waits: bool,
    ) -> Way:
        ways = (self._in_order(there, order, itemsize, waits) for order in orders)
        return min(ways, key=itemgetter(0))

    def _in_order(
        self, there: Sequence[Form], order: Sequence[Form], itemsize: int, waits: bool
    ) -> Way:
        total, known = 0.0, list(there)
        steps: list[tuple[Form, Form]] = []
        for form in order:
            costs = [self.space.seconds(other, form, itemsize, waits=waits) for other in known]
            nearest = min(range(len(known)), key=costs.__getitem__)
            total += costs[nearest]
            steps.append((known[nearest], form))
            known.append(form)
        return total, tuple(steps)
