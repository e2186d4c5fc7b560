"""Price: the seconds of all reshards of a value, as partition will carry them out.

A form that is there serves all that need it, and others are made from the nearest. What was
gathered is there for one phase only; what is no larger than the value was at first stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from autopar.completion.call import Choice
from autopar.completion.graph import Graph
from autopar.completion.space import Form

MAX_ORDERED = 4
"""Up to so many forms all orders of making them are compared, as partition does."""

ROUNDING = 1e-9
"""Relative difference of seconds that doesn't count."""

Needs = tuple[tuple[Form, ...], ...]
"""The forms that are needed in each phase of a microbatch that reads a value."""


class Price:
    """The seconds of the values of one graph; equal ones are computed once.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.space = graph.space
        self._known: dict[tuple[Form, Needs, int], float] = {}

    def total(self, choices: Sequence[Choice], forms: Sequence[Form]) -> float:
        """Returns the seconds of all ops and reshards.

        Args:
            choices: Per op.
            forms: Per value, how it is stored.
        """
        moved = sum(self.value(choices, value, form) for value, form in enumerate(forms))
        return sum(choice.seconds for choice in choices) + moved

    def value(self, choices: Sequence[Choice], value: int, stored: Form) -> float:
        """Returns the seconds of a value's reshards.

        Args:
            choices: Per op.
            value: The value.
            stored: How it is stored.
        """
        graph = self.graph
        producer = graph.producer[value]
        first = stored
        needs: dict[tuple[str, int], dict[Form, None]] = {}
        if producer is not None:
            node, at = producer
            first = choices[node.index].produced[at]
            if value in graph.outputs:
                needs[node.op.phase, node.op.microbatch] = {stored: None}
        for node, at in graph.uses[value]:
            lifetime = node.op.phase, node.op.microbatch
            needs.setdefault(lifetime, {})[choices[node.index].consumed[at]] = None
        ordered = sorted(needs, key=graph.lifetimes.__getitem__)
        return self.seconds(
            first, tuple(tuple(needs[at]) for at in ordered), graph.itemsizes[value]
        )

    def seconds(self, first: Form, needs: Needs, itemsize: int) -> float:
        """Returns the seconds to bring a value from its first form to others, phase by phase."""
        if all(form is first for forms in needs for form in forms):
            return 0.0
        key = (first, needs, itemsize)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._seconds(first, needs, itemsize)
        return found

    def _seconds(self, first: Form, needs: Needs, itemsize: int) -> float:
        lasting, total = [first], 0.0
        for forms in needs:
            missing = [form for form in forms if form not in lasting]
            seconds, made = self._made(lasting, missing, itemsize)
            total += seconds
            lasting += [form for form in made if not self.space.is_gathered(form, first)]
        return total

    def _made(
        self, there: Sequence[Form], missing: Sequence[Form], itemsize: int
    ) -> tuple[float, Sequence[Form]]:
        """Returns the seconds to make forms, each from the nearest of those before it.

        Beside them what is made: a pending value may be reduced on the way, as by partition.
        """
        if not 0 < len(missing) <= MAX_ORDERED:
            return self._in_order(there, missing, itemsize), missing
        reduced = self.space.complete(there[0])
        plain = self._least(there, permutations(missing), itemsize)
        if reduced in there or reduced in missing:
            return plain, missing
        more = (reduced, *missing)
        seconds = self._least(there, permutations(more), itemsize)
        return (seconds, more) if seconds <= plain * (1 + ROUNDING) else (plain, missing)

    def _least(
        self, there: Sequence[Form], orders: Iterable[Sequence[Form]], itemsize: int
    ) -> float:
        return min(self._in_order(there, order, itemsize) for order in orders)

    def _in_order(self, there: Sequence[Form], order: Sequence[Form], itemsize: int) -> float:
        total, known = 0.0, list(there)
        for form in order:
            total += min(self.space.seconds(other, form, itemsize) for other in known)
            known.append(form)
        return total
