"""Propagation: pins travel through factor rules, in both directions, to a fixed point.

In each round every op next to news takes over the splits that its neighbours suggest, then every
value next to such an op takes over the op's. A round reads only what the round before left, so the
order of ops doesn't matter. What is settled stays; where an axis is suggested for several places
at once, the place with the least predicted seconds wins: of the op on the rank with the largest
part, and of the reshards around it along that axis.

By default what changes between calls spreads first, as if parameters weren't split, and parameters
spread into what is left. Otherwise the outcome would depend on which pin happens to be nearer: with
parameters split along the axis of the batch, each layer would be computed by its own parameters'
split before the batch gets there. Where an op had better follow its parameter, `local_search` sees
it.
"""

from __future__ import annotations

from collections.abc import Iterable

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.problem.splits import Place, Splits


class Propagation:
    """The fixed point of the rounds.

    Attributes:
        forms: Per value, its splits as far as they are known.
        choices: Per op, the choice made.
        op_source: Per op, the value from which each axis came.
        value_source: Per value, the op from which each axis came.
    """

    def __init__(self, graph: Graph, *, together: bool = False, anyway: bool = False) -> None:
        """Runs the rounds.

        Args:
            graph: With pins.
            together: Whether parameters spread from the first round on.
            anyway: Whether ops take splits over for which they need another body, at any cost, and
                go on with them for what they look up where that is split.
        """
        self.graph = graph
        self.anyway = anyway
        self.space = graph.space
        self.forms: list[Form] = [
            pin if pin is not None else graph.replicated(value)
            for value, pin in enumerate(graph.pins)
        ]
        self.choices: list[Choice] = [node.call.whole for node in graph.nodes]
        self.op_source: list[dict[str, int]] = [{} for _ in graph.nodes]
        self.value_source: list[dict[str, int]] = [{} for _ in graph.values]
        pinned = [
            value for value, pin in enumerate(graph.pins) if pin is not None and pin.splits.items
        ]
        pinned.extend(self._settle())
        if not together:
            self._run([value for value in pinned if not graph.steady[value]], steady=False)
        # The rounds before may have stopped next to parameters that have more to say.
        self._run(range(len(graph.values)), steady=True)

    def _settle(self) -> list[int]:
        """Gives ops what is decided or settled, and returns the values that take them over."""
        touched: dict[int, None] = {}
        for index, choice in sorted(self.graph.decided.items()):
            self.choices[index] = choice
            touched.update(dict.fromkeys(self.graph.nodes[index].tensors))
        for index, splits in sorted(self.graph.settled.items()):
            node = self.graph.nodes[index]
            settled = node.call.choice(splits)
            if settled is not None:
                self.choices[index] = settled
                touched.update(dict.fromkeys(node.tensors))
        return self._changed(touched)

    def _changed(self, touched: Iterable[int]) -> list[int]:
        """Lets values take over splits from the ops around them; returns those that do."""
        changed = [(v, made) for v in touched if (made := self._take_over(v)) is not None]
        for value, (form, sources) in changed:
            self.forms[value] = form
            self.value_source[value].update(sources)
        return [value for value, _ in changed]

    def _run(self, news: Iterable[int], *, steady: bool) -> None:
        """Runs rounds from these values; with `steady`, parameters start to spread as well."""
        while dirty := self._next_to(news):
            moved = [
                (node, new) for node in dirty if (new := self._absorb(node, steady)) is not None
            ]
            for node, (choice, sources) in moved:
                self.choices[node.index] = choice
                self.op_source[node.index].update(sources)
            news = self._changed(dict.fromkeys(v for node, _ in moved for v in node.tensors))

    def _next_to(self, values: Iterable[int]) -> list[Node]:
        nodes = {
            node.index: node
            for v in values
            if self.forms[v].splits.items
            for node in self.graph.neighbours(v)
        }
        free = (index for index in sorted(nodes) if index not in self.graph.decided)
        return [nodes[index] for index in free if nodes[index].call.has_rule]

    def _absorb(self, node: Node, steady: bool) -> tuple[Choice, dict[str, int]] | None:
        """Returns an op's choice with what its neighbours newly suggest, if there is anything."""
        suggested = [
            (self._suggested(node, position), value)
            for position, value in enumerate(node.tensors)
            if self.forms[value].splits.items
        ]
        current = self.choices[node.index]
        sources: dict[str, int] = {}
        for axis in self.space.axes:
            if axis in current.splits.places:
                continue
            options: dict[Place, tuple[Splits, int]] = {}
            for splits, value in suggested:
                if axis in splits.places and (steady or not self.graph.steady[value]):
                    options.setdefault(splits.places[axis], (splits, value))
            chosen = self._best(node, current, axis, list(options.values()))
            if chosen is not None:
                current, sources[axis] = chosen
        return (current, sources) if sources else None

    def _suggested(self, node: Node, position: int) -> Splits:
        """Returns the splits of an op's factors that fit a tensor of it."""
        value = node.tensors[position]
        splits = node.call.suggest(position, self.graph.lent(node, value, self.forms[value]))
        return node.call.looked_up(splits) if self.anyway else splits

    def _best(
        self, node: Node, current: Choice, axis: str, options: list[tuple[Splits, int]]
    ) -> tuple[Choice, int] | None:
        fitting: list[tuple[Choice, int]] = []
        for splits, value in options:
            merged = self.space.table.merged(current.splits, axis, splits)
            choice = node.call.choice(merged) if merged is not None else None
            if choice is not None:
                fitting.append((choice, value))
        if not fitting:
            return None
        if len(fitting) == 1 and self._is_plain(node, current, *fitting[0]):
            return fitting[0]
        if not (self.anyway or all(self._is_plain(node, current, *option) for option in fitting)):
            fitting.append((current, -1))
        best = min(fitting, key=lambda option: self._seconds(node, option[0], axis))
        return best if best[1] >= 0 else None

    def _is_plain(self, node: Node, current: Choice, choice: Choice, value: int) -> bool:
        """Whether a choice needs no body that the op doesn't use already, or a weight asks for."""
        if choice.dist.body == current.dist.body:
            return True
        return any(node.operands[position] == value for position in node.weights)

    def _seconds(self, node: Node, choice: Choice, axis: str) -> float:
        """Predicted seconds of a choice and of the reshards it implies along one axis."""
        only, itemsizes = self.space.only, self.graph.itemsizes
        total = choice.seconds
        times = node.op.times
        for position, value in enumerate(node.operands):
            has, needs = only(self.forms[value], axis), only(choice.consumed[position], axis)
            total += times * self.space.reshard_seconds(has, needs, itemsizes[value])
        for position, value in enumerate(node.results):
            makes = only(choice.produced[position], axis)
            wanted = only(self.forms[value], axis)
            if self.graph.pins[value] is None and axis not in wanted.splits.places:
                wanted = self.space.complete(makes)
            seconds = self.space.reshard_seconds(makes, wanted, itemsizes[value])
            total += self.graph.times_read[value] * seconds
        return total

    def _take_over(self, value: int) -> tuple[Form, dict[str, int]] | None:
        """Returns a value's form with what the ops around it newly imply, if there is anything."""
        if self.graph.pins[value] is not None:
            return None
        splits = self.forms[value].splits
        around = self._around(value)
        sources: dict[str, int] = {}
        for axis in self.space.axes:
            if axis in splits.places:
                continue
            options: dict[Place, tuple[Form, int]] = {}
            for form, node in around:
                if axis in form.splits.places:
                    options.setdefault(form.splits.places[axis], (form, node))
            if not options:
                continue
            form, node = min(
                options.values(), key=lambda option: self._disagreement(value, option[0], axis)
            )
            merged = self.space.table.merged(splits, axis, form.splits)
            if merged is not None:
                splits, sources[axis] = merged, node
        if not sources:
            return None
        return self.space.of_splits(splits, self.graph.values[value].global_shape), sources

    def _around(self, value: int) -> list[tuple[Form, int]]:
        """The forms that the producer makes and the consumers need, with the op's position."""
        producer = self.graph.producer[value]
        around: list[tuple[Form, int]] = []
        if producer is not None:
            node, position = producer
            around.append((self.choices[node.index].produced[position], node.index))
        around.extend(
            (self.choices[n.index].consumed[position], n.index)
            for n, position in self.graph.uses[value]
        )
        return around

    def _disagreement(self, value: int, form: Form, axis: str) -> float:
        """Seconds of the reshards along an axis, if a value lay in this form."""
        candidate = self.space.only(form, axis)
        candidate = self.space.complete(candidate)
        itemsize = self.graph.itemsizes[value]
        total = 0.0
        producer = self.graph.producer[value]
        for other, node in self._around(value):
            known = self.space.only(other, axis)
            if not known.splits.places:
                continue
            made = producer is not None and producer[0].index == node
            pair = (known, candidate) if made else (candidate, known)
            times = self.graph.nodes[node].op.times
            total += times * self.space.reshard_seconds(*pair, itemsize)
        return total
