"""Local search: every op takes the choice with the least predicted seconds, given its neighbours.

The sum of computation and reshards falls with every step, so this ends. Ops are visited in the
graph's canonical order; only ops next to a reshard, or to a change, are looked at again.

Where a split ends in a gather, the chain of ops before it is tried as a whole too: gathering 8-bit
weights and then widening them is cheaper than the other way round, but no single step shows it.

Where no op alone gains anything, `shift` changes neighbouring ops together.

What may change: an axis goes where a neighbour has it, or nowhere. What may not: where a weight is
pinned along an axis and nobody suggests another place for that axis, the op computes where the
weight lies. So a tensor-parallel layer isn't undone because gathering would be a little faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.problem.splits import Splits
from autopar.completion.propagate.shared_reductions import SharedReductions
from autopar.completion.propagate.shift import shifts

MAX_CHAIN = 8
"""The most ops between a gather and where it might better be."""

MAX_SWEEPS = 16
"""More than any program needed; a bound in case rounding keeps two choices alternating."""

GAIN = 1e-6
"""The part of the local seconds by which a choice must be better to be taken."""


class LocalSearch:
    """Improves choices one op at a time.

    Attributes:
        choices: Per op, the choice made.
        changed: Ops whose choice differs from the first one.
    """

    def __init__(self, graph: Graph, choices: list[Choice]) -> None:
        self.graph = graph
        self.space = graph.space
        self.choices = choices
        self.changed: set[int] = set()
        self._seconds_now: dict[int, float] = {}
        self.readings = Readings(graph, choices)
        self._run()

    def _run(self) -> None:
        decided = self.graph.decided
        nodes = [n for n in self.graph.nodes if n.call.has_rule and n.index not in decided]
        self._sweep(nodes, {node.index for node in nodes})
        self._seconds_now.clear()
        moved = {index for node in nodes for index in self._retreat(node)}
        moved |= {index for node in nodes for index in self._shift(node)}
        self.changed |= moved
        self._sweep(nodes, moved)

    def _sweep(self, nodes: list[Node], dirty: set[int]) -> None:
        for sweep in range(MAX_SWEEPS):
            pending = [node for node in nodes if node.index in dirty]
            dirty = set()
            for node in pending if sweep % 2 == 0 else reversed(pending):
                if self._improve(node):
                    self.changed.add(node.index)
                    near = (n.index for v in node.tensors for n in self.graph.neighbours(v))
                    dirty.update(near)
            if not dirty:
                return

    def _improve(self, node: Node) -> bool:
        current = self.choices[node.index]
        around = _Around(self, node)
        now = around.reshard_seconds(current)
        if now == 0.0:
            return False
        suggested = around.suggested()
        if not suggested and not current.splits.items:
            return False
        best, least = current, now + current.seconds
        limit = least * (1 - GAIN)
        for splits in self._candidates(node, current, suggested):
            choice = node.call.choice(splits)
            if choice is None or around.is_slower(choice, limit):
                continue
            seconds = choice.seconds + around.reshard_seconds(choice, limit - choice.seconds)
            if seconds < limit:
                best, limit = choice, seconds * (1 - GAIN)
        if best is current:
            return False
        self.choices[node.index] = best
        self.readings.forget(node)
        return True

    def _shift(self, node: Node) -> list[int]:
        """Changes an op together with some around it, where one alone gains nothing."""
        if node.steady:
            return []
        around = _Around(self, node)
        current = self.choices[node.index]
        if around.reshard_seconds(current) == 0.0:
            return []
        best: dict[int, Choice] = {}
        gain = 0.0
        for splits in self._candidates(node, current, around.suggested()):
            for changes in shifts(self.graph, self.choices, node, splits):
                if (now := self._gain(changes, gain)) > gain:
                    best, gain = changes, now
        self._settle(best)
        return sorted(best)

    def _retreat(self, node: Node) -> list[int]:
        """Gathers earlier, before a chain of ops that ends in this one, where that is cheaper."""
        choice = self.choices[node.index]
        if not choice.splits.items or not any(map(self._now, node.results)):
            return []
        for axis in choice.splits.places:
            chain = self._best_chain(node, axis)
            if chain:
                self._settle(chain)
                return sorted(chain)
        return []

    def _best_chain(self, node: Node, axis: str) -> dict[int, Choice]:
        """Returns choices without an axis for an op and those before it, if they cost less."""
        chain: dict[int, Choice] = {}
        best: dict[int, Choice] = {}
        gain = 0.0
        for other in self._before(node, axis):
            choice = other.call.choice(self.space.table.without(self._splits(other), axis))
            if choice is None:
                break
            chain[other.index] = choice
            now = self._gain(chain, gain)
            if now > gain:
                best, gain = dict(chain), now
        return best

    def _before(self, node: Node, axis: str) -> list[Node]:
        """Returns an op and those before it that are split along an axis, nearest first."""
        chain = {node.index: node}
        queue = [node]
        while queue and len(chain) < MAX_CHAIN:
            for value in queue.pop(0).operands:
                producer = self.graph.producer[value]
                if producer is None or self.graph.pins[value] is not None:
                    continue
                before = producer[0]
                if before.index in self.graph.decided:
                    continue
                if before.index not in chain and axis in self._splits(before).places:
                    chain[before.index] = before
                    queue.append(before)
        free = [n for n in chain.values() if axis not in self._fixed_here(n)]
        return free if node in free else []

    def _splits(self, node: Node) -> Splits:
        return self.choices[node.index].splits

    def _fixed_here(self, node: Node) -> list[str]:
        return self._fixed_axes(node, self._splits(node), _Around(self, node).suggested())

    def _gain(self, changes: dict[int, Choice], best: float) -> float:
        """Returns how many seconds less other choices for some ops would take.

        What can't gain more than the best so far isn't planned, and counts as no gain.
        """
        nodes = [self.graph.nodes[index] for index in changes]
        values = sorted({value for node in nodes for value in node.tensors})
        kept = {index: self.choices[index] for index in changes}
        before = sum(choice.seconds for choice in kept.values())
        before += sum(self._now(value) for value in values)
        limit = before - GAIN * before - best
        self._choose(changes)
        gain = 0.0
        if self._seconds(changes, values, _least_value_seconds, limit) < limit:
            gain = before - self._seconds(changes, values, value_seconds) - GAIN * before
        self._choose(kept)
        return gain

    def _now(self, value: int) -> float:
        """Returns the seconds of a value's reshards as things are; remembered until they change."""
        found = self._seconds_now.get(value)
        if found is None:
            found = value_seconds(self.graph, self.choices, value)
            self._seconds_now[value] = found
        return found

    def _settle(self, choices: dict[int, Choice]) -> None:
        if choices:
            self._choose(choices)
            self._seconds_now.clear()

    def _choose(self, choices: dict[int, Choice]) -> None:
        for index, choice in choices.items():
            self.choices[index] = choice
            self.readings.forget(self.graph.nodes[index])

    def _seconds(
        self,
        choices: dict[int, Choice],
        values: list[int],
        price: Callable[[Graph, list[Choice], int], float],
        limit: float = math.inf,
    ) -> float:
        """Returns the seconds of some ops and of the values around them, up to a limit."""
        total = sum(choice.seconds for choice in choices.values())
        for value in values:
            if total >= limit:
                break
            total += price(self.graph, self.choices, value)
        return total

    def _candidates(
        self, node: Node, current: Choice, suggested: list[tuple[Splits, int]]
    ) -> list[Splits]:
        """Other splits of an op: one axis elsewhere or gone, or all as one neighbour has them."""
        table = self.space.table
        splits = current.splits
        fixed = self._fixed_axes(node, splits, suggested)
        candidates: dict[Splits, None] = {}
        for axis in self.space.axes:
            if axis in fixed:
                continue
            without = table.without(splits, axis)
            candidates[without] = None
            for other, _ in suggested:
                if axis in other.places and other.places[axis] != splits.places.get(axis):
                    merged = table.merged(without, axis, other)
                    if merged is not None:
                        candidates[merged] = None
        for other, _ in suggested:
            joined: Splits = other
            for axis in fixed:
                joined = table.without(joined, axis)
            for axis in splits.places:
                if axis not in joined.places:
                    joined = table.merged(joined, axis, splits) or joined
            if all(axis in joined.places for axis in fixed):
                candidates[joined] = None
        candidates.pop(splits, None)
        return list(candidates)

    def _fixed_axes(
        self, node: Node, splits: Splits, suggested: list[tuple[Splits, int]]
    ) -> list[str]:
        """Axes along which it is settled, or a weight decides, where the op is computed."""
        settled = self.graph.settled.get(node.index)
        always = {*self.graph.pieced(node), *(settled.places if settled else ())}
        fixed = [axis for axis in splits.places if axis in always]
        for axis, place in splits.places.items():
            if axis in fixed:
                continue
            agreeing = [
                position for other, position in suggested if other.places.get(axis) == place
            ]
            opposed = any(other.places.get(axis, place) != place for other, _ in suggested)
            if (
                not opposed
                and not node.steady
                and any(position in node.weights for position in agreeing)
            ):
                fixed.append(axis)
        return fixed


class Readings:
    """In which forms ops read values, remembered until a choice changes: all may read one value.

    Args:
        graph: The graph.
        choices: Per op, the choice made.
    """

    def __init__(self, graph: Graph, choices: list[Choice]) -> None:
        self._graph = graph
        self._choices = choices
        self._known: dict[int, dict[Form, list[tuple[int, int]]]] = {}

    def demands(self, value: int, without: int = -1) -> list[Form]:
        """Returns the different forms in which ops read a value, in the order of the ops.

        Args:
            value: The value.
            without: An op that doesn't count.
        """
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._readers(value)
        first: dict[Form, int] = {}
        for form, readers in known.items():
            place = next((place for place, node in readers if node != without), None)
            if place is not None:
                first[form] = place
        return sorted(first, key=first.__getitem__)

    def forget(self, node: Node) -> None:
        """Forgets what an op read whose choice has changed."""
        for value in node.operands:
            self._known.pop(value, None)

    def _readers(self, value: int) -> dict[Form, list[tuple[int, int]]]:
        """Returns by form the first two ops that read it: places among the uses, and indices."""
        by_form: dict[Form, list[tuple[int, int]]] = {}
        for place, (node, position) in enumerate(self._graph.uses[value]):
            readers = by_form.setdefault(self._choices[node.index].consumed[position], [])
            if not readers or (len(readers) == 1 and readers[0][1] != node.index):
                readers.append((place, node.index))
        return by_form


class _Around:
    """What lies around an op: where its operands come from and where its results go."""

    def __init__(self, search: LocalSearch, node: Node) -> None:
        self.space = search.space
        self.node = node
        graph, choices = search.graph, search.choices
        self.graph, self.choices = graph, choices
        self.sources: list[tuple[int, int, Form | None, list[Form]]] = []
        self.targets: list[tuple[int, int, Form | None, list[Form], bool]] = []
        for position, value in enumerate(node.operands):
            if value in node.operands[:position]:
                continue
            others = search.readings.demands(value, node.index)
            self.sources.append((position, value, _priced_form(graph, choices, value), others))
        for position, value in enumerate(node.results):
            demands = search.readings.demands(value)
            out = value in graph.outputs
            self.targets.append((position, value, graph.pins[value], demands, out))
        self.itemsizes = graph.itemsizes
        self.choice = choices[node.index]

    def is_slower(self, choice: Choice, limit: float) -> bool:
        """Whether the op and the reshards next to it would take as long as a limit.

        A body is completed only if it and the reshards might take less, as completing takes long.
        """
        if choice.dist.body:
            around = sum(map(self._least_seconds, self._reshards(choice)))
            if self.node.call.least_seconds(choice) + around >= limit:
                return True
        return choice.seconds >= limit

    def reshard_seconds(self, choice: Choice, limit: float = math.inf) -> float:
        """Returns the seconds of all reshards next to the op, if it made this choice.

        What is beyond a limit isn't planned, which takes time, and counts as infinite.
        """
        reshards = list(self._reshards(choice))
        if limit < math.inf and sum(map(self._least_seconds, reshards)) >= limit:
            return math.inf
        total = 0.0
        for source, targets, value in reshards:
            if total >= limit:
                return math.inf
            seconds = self.space.fan_out_seconds(source, targets, self.itemsizes[value])
            total += self.graph.times_read[value] * seconds
        return total

    def _least_seconds(self, reshard: tuple[Form, list[Form], int]) -> float:
        source, targets, value = reshard
        seconds = self.space.least_fan_out_seconds(source, targets, self.itemsizes[value])
        return self.graph.times_read[value] * seconds

    def _reshards(self, choice: Choice) -> Iterator[tuple[Form, list[Form], int]]:
        """Yields the reshards next to the op: (from, to, of which value)."""
        operands = self.node.operands
        for position, value, source, others in self.sources:
            if source is None:
                continue
            demands = dict.fromkeys(others)
            demands[choice.consumed[position]] = None
            for again in range(position + 1, len(operands)):
                if operands[again] == value:
                    demands[choice.consumed[again]] = None
            yield source, list(demands), value
        for position, value, pin, wanted, out in self.targets:
            made = self.graph.own(SharedReductions).priced(
                self.choices, value, choice.produced[position]
            )
            kept = pin if pin is not None else self.space.complete(made) if out else made
            if kept is not made:
                yield made, [kept], value
            if wanted:
                yield kept, wanted, value

    def suggested(self) -> list[tuple[Splits, int]]:
        """Returns the splits of factors that neighbours suggest, with the tensor's position."""
        suggestions: dict[tuple[Splits, int], None] = {}
        call, lent = self.node.call, self.graph.lent
        for position, value, source, _ in self.sources:
            if source is not None and source.splits.items:
                suggestions[call.suggest(position, lent(self.node, value, source)), position] = None
        count = len(self.node.operands)
        for position, value, pin, demands, _ in self.targets:
            for form in [*demands, *([pin] if pin else [])]:
                if form.splits.items:
                    form = lent(self.node, value, form)
                    suggestions[call.suggest(count + position, form), count + position] = None
        return [(splits, position) for splits, position in suggestions if splits.items]


def stored_form(graph: Graph, choices: list[Choice], value: int) -> Form | None:
    """Returns the form in which a value is stored; None for an input that is free."""
    pin = graph.pins[value]
    if pin is not None:
        return pin
    producer = graph.producer[value]
    if producer is None:
        return None
    made = choices[producer[0].index].produced[producer[1]]
    return graph.space.complete(made) if value in graph.outputs else made


def _priced_form(graph: Graph, choices: list[Choice], value: int) -> Form | None:
    """Returns the form in which a value is stored, without reductions that it doesn't pay for."""
    stored = stored_form(graph, choices, value)
    return None if stored is None else graph.own(SharedReductions).priced(choices, value, stored)


def value_seconds(graph: Graph, choices: list[Choice], value: int) -> float:
    """Returns the seconds of all reshards of a value; a free input takes none."""
    stored = _priced_form(graph, choices, value)
    if stored is None:
        return 0.0
    total, size = 0.0, graph.itemsizes[value]
    producer = graph.producer[value]
    if producer is not None:
        made = choices[producer[0].index].produced[producer[1]]
        made = graph.own(SharedReductions).priced(choices, value, made)
        total += graph.space.reshard_seconds(made, stored, size)
    demands = _demands(graph, choices, value)
    total += graph.space.fan_out_seconds(stored, demands, size) if demands else 0.0
    return graph.times_read[value] * total


def _least_value_seconds(graph: Graph, choices: list[Choice], value: int) -> float:
    """Returns seconds that the reshards of a value take at least: the slowest one of them."""
    stored = _priced_form(graph, choices, value)
    if stored is None:
        return 0.0
    least, size = graph.space.least_seconds, graph.itemsizes[value]
    producer = graph.producer[value]
    made = stored if producer is None else choices[producer[0].index].produced[producer[1]]
    made = graph.own(SharedReductions).priced(choices, value, made)
    demands = _demands(graph, choices, value)
    seconds = least(made, stored, size) + graph.space.least_fan_out_seconds(stored, demands, size)
    return graph.times_read[value] * seconds


def _demands(graph: Graph, choices: list[Choice], value: int) -> list[Form]:
    """Returns the different forms in which ops read a value."""
    forms = (choices[node.index].consumed[position] for node, position in graph.uses[value])
    return list(dict.fromkeys(forms))
