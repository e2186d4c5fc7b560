"""Shared reductions: pending sums that meet before anything needs them complete are reduced once.

The gradient of a tied table is the sum of two, one of the lookup and one of the product, and both
are pending over the axis of the batch. If each had to pay for its own reduction, gathering an
activation and computing the smaller one whole would look cheaper. Together they pay once: the one
whose operands are the largest does, as it has the least choice.

Which values meet is a matter of structure: each is read once, by an op that commutes with the
reduction, and so on until an op takes several of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form, bytes_of


class SharedReductions:
    """The groups of a graph's values that meet.

    Args:
        graph: The graph, with pins.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._end: dict[int, int] = {}
        self._payers: dict[int, tuple[Sequence[int], int]] = {}
        meeting: set[int] = set()
        for node in reversed(graph.nodes):
            self._lead(node, meeting)
        groups: dict[int, list[int]] = {}
        for value in sorted(meeting):
            groups.setdefault(self._end[value], []).append(value)
        for group in groups.values():
            group.sort(key=self._weight, reverse=True)
            self._payers.update((value, (group, place)) for place, value in enumerate(group))

    def priced(self, choices: Sequence[Choice], value: int, made: Form) -> Form:
        """Returns the form of a value without the reductions that another one pays for.

        Args:
            choices: Per op.
            value: The value.
            made: The form that its producer leaves it in, or would.
        """
        group, count = self._payers.get(value, ((), 0))
        if not made.layout.partial or not count:
            return made
        covered = {pair for other in islice(group, count) for pair in self._pending(choices, other)}
        kept = {
            axis: monoid for axis, monoid in made.layout.partial if (axis, monoid) not in covered
        }
        return self.graph.space.form(made.layout.with_partial(kept)) if covered else made

    def _lead(self, node: Node, meeting: set[int]) -> None:
        """Leads an op's operands to where its result ends."""
        if len(node.results) != 1:
            return
        row, (result,) = node.call.longest_row(), node.results
        for position in row:
            value = node.operands[position]
            if len(self.graph.uses[value]) == 1 and not self._is_fixed(value):
                self._end[value] = self._end.get(result, result)
                if len(row) > 1 or result in meeting:
                    meeting.add(value)

    def _is_fixed(self, value: int) -> bool:
        """Whether a value is needed complete, whoever reads it."""
        return value in self.graph.outputs or self.graph.pins[value] is not None

    def _weight(self, value: int) -> int:
        """Returns the bytes of what the op reads that produces a value."""
        producer = self.graph.producer[value]
        return sum(bytes_of(self.graph.values[v]) for v in producer[0].operands) if producer else 0

    def _pending(self, choices: Sequence[Choice], value: int) -> Sequence[tuple[str, str]]:
        producer = self.graph.producer[value]
        if producer is None:
            return ()
        return choices[producer[0].index].produced[producer[1]].layout.partial
