"""Deferred reductions: how far partial values flow before they are reduced.

Splits are settled; what is open is which linear ops work on pieces that are still to be reduced.
Along the mesh axes that ops split together this is a minimum cut: an op that splits a sum is a
source, an op that can't work on pieces is a sink, and cutting a value costs the seconds of its
reduction there, once for all readers that need it in the same form. The cut is exact, so two
partial sums are added before one reduction, and a value is never reduced twice where once is
enough. Among equal cuts the earliest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autopar.base.minimum_cut import INFINITE, FlowGraph
from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.ir.expr.expression import planned, prod
from autopar.ir.layout import MONOIDS
from autopar.ir.program import Pending

SECONDS_UNIT = 1e-12
"""Costs are compared as whole picoseconds."""


def defer_reductions(graph: Graph, choices: list[Choice]) -> None:
    """Lets partial values flow where that costs least; changes `choices` in place."""
    rank = graph.space.axes.index
    born = {
        (_born(choice, position, monoid), monoid)
        for choice in choices
        for position, form in enumerate(choice.produced)
        for _, monoid in form.layout.partial
    }
    order = sorted(
        (pair for pair in born if pair[0]),
        key=lambda pair: (-len(pair[0]), [rank(a) for a in pair[0]], MONOIDS.index(pair[1])),
    )
    for axes, monoid in order:
        _Cut(graph, choices, axes, monoid).apply()


def _born(choice: Choice, position: int, monoid: str) -> tuple[str, ...]:
    """Returns the axes over which an op itself leaves a result pending."""
    passing = {pending.axis for pending in choice.dist.pending}
    partial = choice.produced[position].layout.partial
    return tuple(axis for axis, of in partial if of == monoid and axis not in passing)


@dataclass
class _Cut:
    """The problem of one reduction, over axes that ops split together."""

    graph: Graph
    choices: list[Choice]
    axes: tuple[str, ...]
    monoid: str
    born: list[Node] = field(init=False)
    rows: dict[int, tuple[int, ...]] = field(init=False)
    flow: FlowGraph = field(init=False)
    number: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.born = [
            node
            for node in self.graph.nodes
            if any(self._is_born(node, position) for position in range(len(node.results)))
        ]
        self.rows = {}
        self.flow = FlowGraph()
        self.number = {}
        reached = self._reach()
        for node in [*self.born, *reached]:
            self.number[node.index] = self.flow.node()
        for node in [*self.born, *filter(self._is_kept, reached)]:
            self.flow.edge(self.flow.source, self.number[node.index], INFINITE)
        for node in [*self.born, *reached]:
            for position, value in enumerate(node.results):
                if node.index in self.rows or self._is_born(node, position):
                    self._add_value(node, position, value)

    def apply(self) -> None:
        """Changes the choices of ops through which the reduction flows."""
        side = self.flow.source_side()
        for index, operands in self.rows.items():
            if self.number[index] in side:
                old = self.choices[index]
                pending = [Pending(axis, self.monoid, operands) for axis in self.axes]
                together = (*old.dist.pending, *pending)
                choice = self.graph.nodes[index].call.choice(old.splits, together)
                if choice is not None:
                    self.choices[index] = choice

    def _is_born(self, node: Node, position: int) -> bool:
        return _born(self.choices[node.index], position, self.monoid) == self.axes

    def _may_be_pending(self, value: int) -> bool:
        """Whether a value is free, or pinned to be pending this reduction."""
        pin = self.graph.pins[value]
        return pin is None or {(a, self.monoid) for a in self.axes} <= set(pin.layout.partial)

    def _is_kept(self, node: Node) -> bool:
        """Whether a result is pinned to be pending, so that pieces had better flow that far."""
        return any(
            self.graph.pins[value] is not None and self._may_be_pending(value)
            for value in node.results
        )

    def _reach(self) -> list[Node]:
        """Returns the ops that pieces can flow through, and settles which operands may be so."""
        pieces = {
            value
            for node in self.born
            for position, value in enumerate(node.results)
            if self._is_born(node, position) and self._may_be_pending(value)
        }
        starts = {node.index for node in self.born}
        queue = sorted({use.index for value in pieces for use, _ in self.graph.uses[value]})
        reached: list[Node] = []
        for node in self.graph.nodes[queue[0] :] if queue else []:
            if node.index in starts or pieces.isdisjoint(node.operands):
                continue
            row = self._best_row(node, pieces)
            if row is not None:
                self.rows[node.index] = row
                reached.append(node)
                pieces.update(filter(self._may_be_pending, node.results))
        return reached

    def _best_row(self, node: Node, pieces: set[int]) -> tuple[int, ...] | None:
        """Returns the operands that are pending together if pieces flow through an op."""
        if node.index in self.graph.decided:
            return None
        choice = self.choices[node.index]
        busy = choice.splits.places
        taken = {*busy, *(pending.axis for pending in choice.dist.pending)}
        if not taken.isdisjoint(self.axes):
            return None
        if any(m != self.monoid for form in choice.produced for _, m in form.layout.partial):
            return None
        best: tuple[int, ...] | None = None
        for row in node.call.rows(choice.dist.body, self.monoid):
            if all(node.operands[position] not in pieces for position in row):
                continue
            if best is None or self._gain(node, row, pieces) > self._gain(node, best, pieces):
                best = row
        return best

    def _gain(self, node: Node, positions: tuple[int, ...], pieces: set[int]) -> tuple[int, int]:
        """Prefers rows that spare the reduction of more, and then of larger, operands."""
        spared = [position for position in positions if node.operands[position] in pieces]
        sizes = (self.graph.values[node.operands[position]].global_shape for position in spared)
        return len(spared), sum(planned(prod(shape)) for shape in sizes)

    def _add_value(self, node: Node, number: int, value: int) -> None:
        """Adds the edges of a value: what it costs to reduce it, per form that readers need."""
        made = self._partial(self.choices[node.index].produced[number])
        start = self.number[node.index]
        pin = self.graph.pins[value]
        if pin is not None and not self._may_be_pending(value):
            self._demand(start, made, value, pin, [])
            return
        demands: dict[Form, list[Node]] = {}
        must: set[Form] = set()
        for reader, position in self.graph.uses[value]:
            needed = self.choices[reader.index].consumed[position]
            readers = demands.setdefault(needed, [])
            if position in self.rows.get(reader.index, ()):
                readers.append(reader)
            else:
                must.add(needed)
        if value in self.graph.outputs:
            whole = self.graph.space.complete(made)
            demands.setdefault(whole, [])
            must.add(whole)
        for needed, readers in demands.items():
            self._demand(start, made, value, needed, [] if needed in must else readers)

    def _demand(
        self, start: int, made: Form, value: int, needed: Form, readers: list[Node]
    ) -> None:
        """Adds the cost of bringing pieces into a form, which readers share."""
        seconds = self.graph.space.reshard_seconds(made, needed, self.graph.itemsizes[value])
        seconds *= self.graph.times_read[value]
        # Even where nothing is to be moved, as for empty values, finishing takes an op.
        finishes = any((axis, self.monoid) not in needed.layout.partial for axis in self.axes)
        capacity = max(round(seconds / SECONDS_UNIT), int(finishes))
        if not readers:
            self.flow.edge(start, self.flow.sink, capacity)
            return
        if len(readers) == 1:
            self.flow.edge(start, self.number[readers[0].index], capacity)
            return
        joint = self.flow.node()
        self.flow.edge(start, joint, capacity)
        for reader in readers:
            self.flow.edge(joint, self.number[reader.index], INFINITE)

    def _partial(self, form: Form) -> Form:
        pending = {**dict(form.layout.partial), **dict.fromkeys(self.axes, self.monoid)}
        return self.graph.space.form(form.layout.with_partial(pending))
