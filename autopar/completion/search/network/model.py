"""Model: a graph as a network whose least cost is that of the fastest plan.

The variables are what is free: how each op is computed, and where it makes a difference the form
in which a value is kept (of an input, how it is stored) and the one to which it is brought in a
phase, from which all that read it there take what they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autopar.completion.problem.buckets import DeferredSums
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.search.network.candidates import Candidates
from autopar.completion.search.network.memory_price import FREE, MemoryPrice, ResidentValues
from autopar.completion.search.network.network import IMPOSSIBLE, Array, Costs, Network
from autopar.completion.search.network.transfer import Ends, Moved, Moves, Tensors, Transfers
from autopar.ir.program import Lifetime

End = tuple[int, Ends]
"""A variable, and the form of a tensor with each of its labels."""

Readers = dict[int, list[Ends]]
"""Per op, how it needs a value, as often as it reads it."""

_ONCE = Lifetime("")
"""Stands for any that is in no loop."""


@dataclass(frozen=True)
class Model:
    """A network and what its variables mean.

    Attributes:
        graph: The graph.
        network: The network.
        candidates: Per op, whose variable has the op's number.
        stored: Per value that has one, the variable of the form in which it is kept, and its forms.
        moves: The reshards between variables.
    """

    graph: Graph
    network: Network
    candidates: Sequence[Candidates]
    stored: dict[int, tuple[int, Ends]]
    moves: list[Moves]

    def choices(self, labels: Sequence[int]) -> list[Choice]:
        """Returns the choice of every op."""
        return [c.choices[labels[index]] for index, c in enumerate(self.candidates)]

    def forms(self, labels: Sequence[int]) -> list[Form]:
        """Returns the form in which every value is stored."""
        graph, choices = self.graph, self.choices(labels)
        renewed = dict(graph.renewed)
        return [
            self._form(labels, choices, value, renewed.get(value, value))
            for value in range(len(graph.values))
        ]

    def _form(
        self, labels: Sequence[int], choices: Sequence[Choice], value: int, owner: int
    ) -> Form:
        graph = self.graph
        pin = graph.pins[owner]
        if pin is not None:
            return pin
        if owner in self.stored and _is_stored(graph, owner):
            variable, ends = self.stored[owner]
            return ends.forms[labels[variable]]
        producer = graph.producer[value]
        if producer is None:
            return graph.replicated(value)
        return choices[producer[0].index].produced[producer[1]]

    def transfers_of(self, labels: Sequence[int]) -> Iterator[Moved]:
        """Yields the reshards that labels stand for."""
        return transfers_of(self.moves, labels)

    def keep_stored(self, forms: Sequence[Form]) -> None:
        """Leaves each value that is stored only the form that it has in a plan.

        Args:
            forms: Those of the plan, per value.
        """
        network = self.network
        for value, (variable, ends) in self.stored.items():
            if self.graph.producer[value] is None and forms[value] in ends.forms:
                label, count = ends.forms.index(forms[value]), len(ends.forms)
                only = np.where(np.arange(count) == label, 0.0, IMPOSSIBLE)
                network.charge(variable, network.costs.number_of(("only", count, label), only.copy))


def transfers_of(moves: Iterable[Moves], labels: Sequence[int]) -> Iterator[Moved]:
    """Yields the reshards that labels stand for, but for those between equal forms."""
    for source, before, target, after, of in moves:
        made, needed = before.of_label[labels[source]], after.of_label[labels[target]]
        if made is not needed:
            yield before, made, after, needed, of


def tensors_of(graph: Graph, value: int, source: Ends, read: Lifetime = _ONCE) -> Tensors:
    """Returns of which tensors a reshard of a value is, from one of these forms, for a lifetime."""
    group = graph.shared(DeferredSums).group_of(value) if source.may_pend else None
    return Tensors(graph.itemsizes[value], group, read.times, graph.times_made(value, read))


def _is_stored(graph: Graph, value: int) -> bool:
    return graph.producer[value] is None or value in graph.outputs


def build_model(
    graph: Graph,
    candidates: Sequence[Candidates],
    transfers: Transfers,
    resident: ResidentValues | None = None,
    price: MemoryPrice = FREE,
    *,
    together: bool = True,
    costs: Costs | None = None,
) -> Model:
    """Returns the model of a graph.

    Args:
        graph: With the user's pins.
        candidates: Per op.
        transfers: Tables of reshards.
        held: The values whose bytes have a price.
        price: That price.
        together: Whether sums that may travel together take a part of a bucket, or count as alone.
        costs: Of models of the graph before: what didn't change isn't computed again.
    """
    builder = _Builder(graph, candidates, transfers, together, costs)
    model = builder.build()
    if resident is not None and not price.is_free:
        builder.charge(resident, price)
    return model


class _Builder:
    def __init__(
        self,
        graph: Graph,
        candidates: Sequence[Candidates],
        transfers: Transfers,
        together: bool,
        costs: Costs | None,
    ) -> None:
        self.together = together
        self.graph = graph
        self.space = graph.space
        self.transfers = transfers
        self.network = Network(costs)
        self.candidates = candidates
        self.stored: dict[int, tuple[int, Ends]] = {}
        self.renewed = {into: out for out, into in graph.renewed}
        self.grown = {out: into for out, into in graph.aliases if self.renewed.get(into) != out}
        self.grows = {into: out for out, into in self.grown.items()}
        self.moves: list[Moves] = []

    def build(self) -> Model:
        for each in self.candidates:
            key = ("op", each, each.lessons)
            self.network.variable(self.network.costs.number_of(key, partial(_seconds, each)))
        renewals = set(self.renewed.values())
        # What has grown is kept as what it was before is.
        for value in sorted(range(len(self.graph.values)), key=lambda each: each not in self.grows):
            if value not in renewals:
                self._add_value(value)
        return Model(self.graph, self.network, self.candidates, self.stored, self.moves)

    def charge(self, resident: ResidentValues, price: MemoryPrice) -> None:
        """Adds the price of the bytes that values take as they are made or kept."""
        for value in resident.values:
            places = [self.stored[value]] if value in self.stored else self._makers(value)
            resident.charge(self.network, places, value, price)

    def _add_value(self, value: int) -> None:
        """Adds what it costs to bring a value from where it is made, or stored, to its readers."""
        readers = self._readers(value)
        made = self._makers(value)
        is_fixed = self._is_fixed(value)
        count = sum(len(ops) for ops in readers.values())
        if not count and not is_fixed:
            return
        if made and count == 1 and not is_fixed:
            source = made[0]
        else:
            source = self._kept(value, made, readers)
        free = not made and self.graph.pins[value] is None
        for lifetime, ops in readers.items():
            shared = len(ops) > 1 and not free and (is_fixed or len(readers) > 1)
            of = self._tensors(value, source[1], lifetime)
            near = self._gathered(source, ops, of) if shared else source
            of = self._tensors(value, near[1], lifetime)
            for op, ends in ops.items():
                self._read(near, op, ends, of)

    def _is_fixed(self, value: int) -> bool:
        """Whether a value lies in a form of its own, however its producer leaves it."""
        graph = self.graph
        if graph.pins[value] is not None or value in graph.outputs:
            return True
        return value in self.renewed or value in self.grows

    def _contents(self, value: int) -> Sequence[int]:
        """Returns a value and, if there is one, its new content."""
        return (value, self.renewed[value]) if value in self.renewed else (value,)

    def _makers(self, value: int) -> list[End]:
        """Returns the variables of the ops that make a value, or its new content."""
        makers = []
        for each in self._contents(value):
            producer = self.graph.producer[each]
            if producer is not None:
                node, position = producer
                ends = self.transfers.ends(self.candidates[node.index].produced[position])
                makers.append((node.index, ends))
        return makers

    def _readers(self, value: int) -> dict[Lifetime, Readers]:
        """Returns per lifetime the ops that read a value, with how they need it."""
        readers: dict[Lifetime, Readers] = {}
        for each in self._contents(value):
            for node, position in self.graph.uses[each]:
                lifetime = node.lifetime
                ends = self.transfers.ends(self.candidates[node.index].consumed[position])
                readers.setdefault(lifetime, {}).setdefault(node.index, []).append(ends)
        return readers

    def _kept(self, value: int, made: Sequence[End], readers: Mapping[Lifetime, Readers]) -> End:
        """Adds the variable of the form in which a value is kept."""
        kept = self._as_before(value) or self._variable(self._kept_forms(value, made, readers))
        self.stored[value] = kept
        is_free = self.graph.pins[value] is None and self.graph.producer[value] is not None
        contents = (each for each in self._contents(value) if self.graph.producer[each] is not None)
        for maker, each in zip(made, contents, strict=True):
            of = self._tensors(each, maker[1], self.graph.nodes[maker[0]].left_in)
            self._move(maker, kept, of, is_free and len(readers) > 1)
        return kept

    def _as_before(self, value: int) -> End | None:
        """Returns the variable of the form of state that has grown: that of what it was before."""
        before = self.grown.get(value)
        if before is None:
            return None
        variable, ends = self.stored[before]
        forms = (self.graph.like(value, before, form) for form in ends.forms)
        return variable, self.transfers.ends(tuple(forms))

    def _kept_forms(
        self, value: int, made: Sequence[End], readers: Mapping[Lifetime, Readers]
    ) -> list[Form]:
        graph, complete = self.graph, self.space.complete
        pin = graph.pins[value]
        if pin is not None:
            return [pin]
        known = [form for _, ends in made for form in ends.forms]
        if value in self.grows:
            after = self.grows[value]
            known += [
                graph.like(value, after, complete(form))
                for _, ends in self._makers(after)
                for form in ends.forms
            ]
        wanted = [form for ops in readers.values() for form in _forms(ops)]
        whole = [complete(form) for form in (*known, *wanted)]
        if _is_stored(graph, value):
            return [*whole, graph.replicated(value)]
        return [*known, *whole, *wanted]

    def _tensors(self, value: int, source: Ends, read: Lifetime) -> Tensors:
        """Returns of which tensors a reshard of a value is, see `tensors_of`."""
        tensors = tensors_of(self.graph, value, source, read)
        return tensors if self.together else replace(tensors, group=None)

    def _gathered(self, source: End, ops: Readers, of: Tensors) -> End:
        """Adds the variable of the form to which a value is brought in a phase."""
        gathered = self._variable([*source[1].forms, *_forms(ops)])
        self._move(source, gathered, of)
        return gathered

    def _variable(self, forms: Sequence[Form]) -> End:
        """Adds a variable that is one of some forms."""
        ends = self.transfers.ends(tuple(dict.fromkeys(forms)))
        count = len(ends.forms)
        zeros = self.network.costs.number_of(("free", count), lambda: np.zeros(count))
        return self.network.variable(zeros), ends

    def _move(self, source: End, target: End, of: Tensors, lasting: bool = False) -> None:
        """Adds the reshard from one variable's form to another's."""
        transfers, (before, after) = self.transfers, (source[1], target[1])

        def make() -> Array:
            seconds = transfers.reshard_seconds(before, after, of)
            return seconds + transfers.lasting(before, after) if lasting else seconds

        key = ("move", before, after, of, lasting, transfers.lessons(before, after, of))
        self.network.connect(source[0], target[0], self.network.costs.number_of(key, make))
        self.moves.append((*source, *target, of))

    def _read(self, near: End, op: int, ends: Sequence[Ends], of: Tensors) -> None:
        """Adds the reshards from a variable's form to those that an op needs, each once."""
        transfers, source = self.transfers, near[1]

        def make() -> Array:
            total = transfers.reshard_seconds(source, ends[0], of)
            for index, more in enumerate(ends[1:], start=1):
                seconds = transfers.reshard_seconds(source, more, of)
                for other in ends[:index]:
                    seconds[:, other.is_same(more)] = 0.0
                total = total + seconds
            return total

        lessons = tuple(transfers.lessons(source, each, of) for each in ends)
        key = ("read", source, tuple(ends), of, lessons)
        self.network.connect(near[0], op, self.network.costs.number_of(key, make))
        self.moves.extend((*near, op, each, of) for each in ends)


def _forms(ops: Readers) -> list[Form]:
    return [form for some in ops.values() for ends in some for form in ends.forms]


def _seconds(candidates: Candidates) -> Array:
    return np.array(candidates.seconds)
