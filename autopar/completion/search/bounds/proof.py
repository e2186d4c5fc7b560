"""Proof: a network that costs no plan more than it takes, so that its bound is one of every plan.

What a plan takes isn't a sum over pairs of ops: whoever reads a value shares its forms. So of a
value that many read, two readers at a time are priced, and the mean of such pairs is taken. For two
of them it is known what the fewest seconds are: both get what they need by way of one form, which
is one of theirs, the first or the reduced one, and which must last if they are in different phases.
Whatever others need can only be more.

Tables hold what a reshard takes at least, until it was planned. A sum that nobody waits for takes
at least its part of the largest bucket there can be. Of those that their phases wait for, the sums
along one path are in different buckets and count as alone; all others as what they add to a bucket.

Without it a plan of GPT-2 on 32x8 is open by 22% instead of 0.85% (`benchmarks/without.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import combinations, cycle, islice, pairwise, product

import numpy as np

from autopar.completion.problem.buckets import AWAITED, DeferredSums
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.search.network.candidates import Candidates
from autopar.completion.search.network.memory_price import FREE, MemoryPrice, ResidentValues
from autopar.completion.search.network.model import End, transfers_of
from autopar.completion.search.network.network import Array, Costs, Network
from autopar.completion.search.network.order import SumsInOrder
from autopar.completion.search.network.shares import Shares
from autopar.completion.search.network.transfer import Ends, Moved, Moves, Tensors, Transfers
from autopar.ir.program import Lifetime

MAX_PAIRS = 6
"""Of how many pairs of a value's readers the mean is taken at most."""

Share = tuple[list[float], int]
"""Shares of pairs in a mean, and which of them."""

ALL: Share = ([1.0], 0)
"""The share of what isn't a mean."""

_Cost = tuple[Callable[[], Hashable], Callable[[], Array]]
"""What tells an array of costs from others, by what is known now, and what makes it."""

Reader = tuple[Lifetime, int, Ends]
"""Who reads a value: when, its variable, and the form that it needs with each of its labels."""


class Proof:
    """The network of a graph.

    Args:
        graph: With the user's pins.
        candidates: Per op, whose variable has the op's number.
        transfers: Tables of the least seconds of reshards.
    """

    def __init__(
        self,
        graph: Graph,
        candidates: Sequence[Candidates],
        transfers: Transfers,
    ) -> None:
        self.graph = graph
        self.candidates = candidates
        self.transfers = transfers
        self.moves: list[Moves] = []
        self.stored: dict[int, End] = {}
        self._vectors: list[_Cost] = []
        self._edges: list[tuple[int, int, _Cost]] = []
        self._parts: list[Share] = []
        self._shares = Shares()
        self._renewed = dict(graph.renewed)
        self._costs = Costs(transfers.watch)
        self._alone = SumsInOrder(graph, candidates).reader
        for each in candidates:
            self._vectors.append((partial(_op_key, each), partial(_least_seconds, each)))
        for value in range(len(graph.values)):
            self._add_value(value)

    def network(self, resident: ResidentValues, price: MemoryPrice = FREE) -> Network:
        """Returns the network with what is known by now.

        Args:
            held: The values whose bytes have a price, where they are stored or made.
            price: That price.
        """
        self._costs = self._costs.kept()
        network = Network(self._costs)
        for key, make in self._vectors:
            network.variable(network.costs.number_of(key(), make))
        for one, other, (key, make) in self._edges:
            network.connect(one, other, network.costs.number_of(key(), make))
        for value in () if price.is_free else resident.values:
            resident.charge(network, self._origins(value), value, price)
        return network

    def _origins(self, value: int) -> list[End]:
        """Returns the variable of the op that makes a value, or of how an input is stored."""
        producer = self.graph.producer[value]
        if producer is None:
            return [self.stored[value]] if value in self.stored else []
        node, position = producer
        return [(node.index, self.transfers.ends(self.candidates[node.index].produced[position]))]

    def choices(self, labels: Sequence[int]) -> list[Choice]:
        """Returns the choice of every op."""
        return [c.choices[labels[index]] for index, c in enumerate(self.candidates)]

    def forms(self, labels: Sequence[int]) -> list[Form]:
        """Returns the form in which every value is stored."""
        choices = self.choices(labels)
        return [self._form(labels, choices, value) for value in range(len(self.graph.values))]

    def learn(self, labels: Sequence[int]) -> bool:
        """Prices ops exactly that labels stand for; returns whether one takes more than known."""
        ways = {(each, labels[index]) for index, each in enumerate(self.candidates)}
        learned = [each.learn_least(label) for each, label in ways]
        return any(learned)

    def follow(self, labels: Sequence[int]) -> None:
        """Lets those pairs of readers count more that cost more by labels."""
        self._shares.follow(
            (shares, index, self.transfers.known(move, labels))
            for (shares, index), move in zip(self._parts, self.moves, strict=True)
            if len(shares) > 1
        )

    def transfers_of(self, labels: Sequence[int]) -> Iterator[Moved]:
        """Yields the reshards that labels stand for."""
        return transfers_of(self.moves, labels)

    def _form(self, labels: Sequence[int], choices: Sequence[Choice], value: int) -> Form:
        owner = self._renewed.get(value, value)
        if owner in self.stored:
            variable, ends = self.stored[owner]
            return ends.of_label[labels[variable]]
        pin, producer = self.graph.pins[value], self.graph.producer[value]
        if pin is not None:
            return pin
        if producer is None:
            return self.graph.replicated(value)
        return choices[producer[0].index].produced[producer[1]]

    def _add_value(self, value: int) -> None:
        """Adds what it costs at least to bring a value to its readers."""
        readers = list(self._readers(value))
        producer = self.graph.producer[value]
        if producer is not None:
            node, _ = producer
            (source,) = self._origins(value)
            if value in self.graph.outputs:
                lifetime = node.left_in
                readers.append((lifetime, *self._stored(self._renewed.get(value, value))))
        elif readers:
            source = self._stored(value)
        readers = list(dict.fromkeys(readers))
        if len(readers) == 1:
            self._move(source, readers[0][1:], self._tensors(value, source, readers), ALL)
        if len(readers) > 1:
            self._add_pairs(value, source, readers)

    def _add_pairs(self, value: int, source: End, readers: Sequence[Reader]) -> None:
        """Adds for pairs of readers the form by way of which both get a value.

        What was gathered for one phase doesn't serve another, unless a third reader took something
        from it there that lasts.
        """
        made = source[1].forms
        wanted = (form for _, _, ends in readers for form in ends.forms)
        forms = (*made, *map(self.graph.space.complete, made), *wanted)
        lasting = len({lifetime for lifetime, _, _ in readers}) == len(readers)
        alone = [reader for reader in readers if self._is_alone(value, source, [reader])]
        others = [reader for reader in readers if reader not in alone]
        pairs = _pairs_with(alone[0], others or alone[1:]) if alone else _pairs(readers)
        more = _left(readers, alone, pairs)
        key = source[1], tuple((reader[0], reader[2]) for reader in readers), len(alone)
        shares = self._shares.shares_of(key, len(pairs), len(pairs) + len(more))
        for index, pair in enumerate((*pairs, *more)):
            share = shares, index
            middle = self._variable(forms)
            self._move(source, middle, self._tensors(value, source, pair), share, lasting)
            for reader in pair:
                self._move(middle, reader[1:], self._tensors(value, middle, [reader]), share)

    def _is_alone(self, value: int, source: End, readers: Sequence[Reader]) -> bool:
        """Whether the sums of a value that are for one of some readers count as alone."""
        reader = self._alone.get(value)
        return source[1].may_pend and any(each[1] == reader for each in readers)

    def _tensors(self, value: int, source: End, readers: Sequence[Reader]) -> Tensors:
        """Returns of which tensors the reshards of a value for some readers are.

        They are carried out at least as often as the reader that runs least.
        """
        graph = self.graph
        group = graph.shared(DeferredSums).joined_with(value) if source[1].may_pend else None
        if group == AWAITED and self._is_alone(value, source, readers):
            group = None
        least = min((each[0] for each in readers), key=lambda lifetime: lifetime.times)
        made = min(graph.times_made(value, each[0]) for each in readers)
        return Tensors(graph.itemsizes[value], group, least.times, made)

    def _readers(self, value: int) -> Iterator[Reader]:
        for node, position in self.graph.uses[value]:
            ends = self.transfers.ends(self.candidates[node.index].consumed[position])
            yield node.lifetime, node.index, ends

    def _stored(self, value: int) -> End:
        """Returns the variable of the form in which an input or output is stored."""
        if value not in self.stored:
            self.stored[value] = self._variable(self._stored_forms(value))
        return self.stored[value]

    def _stored_forms(self, value: int) -> Sequence[Form]:
        graph = self.graph
        pin = graph.pins[value]
        if pin is not None:
            return [pin]
        around = [value, *(out for out, into in graph.renewed if into == value)]
        forms = [
            form for each in around for _, _, ends in self._readers(each) for form in ends.forms
        ]
        for producer in (graph.producer[each] for each in around):
            if producer is not None:
                forms += self.candidates[producer[0].index].produced[producer[1]]
        return [*map(graph.space.complete, forms), graph.replicated(value)]

    def _variable(self, forms: Sequence[Form]) -> End:
        """Adds a variable that is one of some forms."""
        ends = self.transfers.ends(tuple(dict.fromkeys(forms)))
        count = len(ends.forms)
        self._vectors.append((partial(_same, ("free", count)), partial(np.zeros, count)))
        return len(self._vectors) - 1, ends

    def _move(
        self, source: End, target: End, of: Tensors, share: Share, lasting: bool = False
    ) -> None:
        """Adds a share of the seconds of the reshard from one variable's form to another's."""
        transfers, before, after = self.transfers, source[1], target[1]
        shares, index = share

        def make() -> Array:
            seconds = shares[index] * transfers.reshard_seconds(before, after, of)
            return seconds + transfers.lasting(before, after) if lasting else seconds

        def key() -> Hashable:
            lessons = transfers.lessons(before, after, of)
            return "move", before, after, of, shares[index], lasting, lessons

        self._edges.append((source[0], target[0], (key, make)))
        self.moves.append((*source, *target, of))
        self._parts.append(share)


def _pairs(readers: Sequence[Reader]) -> list[tuple[Reader, Reader]]:
    """Returns the pairs of a value's readers of which the mean is taken.

    Of different phases if there are such, for what was gathered in one isn't there in another.
    """
    phases: dict[Lifetime, list[Reader]] = {}
    for reader in readers:
        phases.setdefault(reader[0], []).append(reader)
    first, second, *_ = (*phases.values(), readers[1:])
    every: Iterator[tuple[Reader, Reader]] = combinations(first, 2)
    few: Iterator[tuple[Reader, Reader]] = pairwise(first)
    if len(phases) > 1:
        every = product(first, second)
        few = zip(cycle(first), second, strict=False)
    pairs = list(islice(every, MAX_PAIRS + 1))
    return pairs if len(pairs) <= MAX_PAIRS else list(islice(few, MAX_PAIRS))


def _pairs_with(reader: Reader, others: Sequence[Reader]) -> list[tuple[Reader, Reader]]:
    """Returns the pairs of a reader and others, of other phases if there are such."""
    apart = [other for other in others if other[0] != reader[0]]
    return [(reader, other) for other in (apart or others)[:MAX_PAIRS]]


def _left(
    readers: Sequence[Reader], alone: Sequence[Reader], pairs: Sequence[tuple[Reader, Reader]]
) -> list[tuple[Reader, Reader]]:
    """Returns pairs of the readers that are in none, with the one that counts as alone."""
    first = alone[0] if alone else readers[0]
    paired = {reader for pair in pairs for reader in pair}
    left = [(first, reader) for reader in readers if reader not in paired and reader != first]
    return left[: max(0, MAX_PAIRS - len(pairs))]


def _same(key: Hashable) -> Hashable:
    return key


def _op_key(candidates: Candidates) -> Hashable:
    return "op", candidates, candidates.least_lessons


def _least_seconds(candidates: Candidates) -> Array:
    return np.array(candidates.least_seconds)
