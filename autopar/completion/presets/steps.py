"""Steps: what an op does to how activations lie along one mesh axis, and what that costs.

The `tensor` preset tries them, many times over for the ops of equal layers: so equal ones, whose
operands are at hand in the same forms, are priced once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.problem.splits import Splits

COLLECTIVE_OVERHEAD = 0.1
"""What a further collective costs besides, in parts of its latency: among equals, fewer win."""

Forms = tuple[Form, ...]
"""The forms in which a value is at hand, along one axis."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an op does.

    Attributes:
        choice: How it is split.
        seconds: Of its communication, and of what its body adds to its work.
        taken: The form in which it takes each operand.
        made: The form of each result behind it.
    """

    choice: Choice
    seconds: float
    taken: tuple[Form, ...]
    made: tuple[Form, ...]


class Steps:
    """The steps of a graph's ops along an axis.

    Args:
        graph: With pins.
        axis: Name of a mesh axis.
        weights: Returns which operands of an op are weights.
    """

    def __init__(self, graph: Graph, axis: str, weights: Callable[[Node], tuple[int, ...]]) -> None:
        self.graph = graph
        self.space = graph.space
        self.axis = axis
        self.weights = weights
        self.planner = self.space.planner_along(axis)
        self.latency = self.planner.model.all_gather(0.0, (axis,))
        self.results_of_pinned = [self._results_if_pinned(node) for node in graph.nodes]
        self._costs: dict[tuple[Form, Form, int], float] = {}
        self._steps: dict[tuple[object, ...], Step | None] = {}
        self._follows: dict[tuple[object, ...], Step] = {}

    def split(self, node: Node, splits: Splits, hands: tuple[Forms, ...]) -> Step | None:
        """Returns what an op does if it is split so, its weights as needed; None if it can't.

        Args:
            node: The op.
            splits: Of its factors.
            hands: In which forms each operand is at hand.
        """
        key = (node.call, splits, hands, self.results_of_pinned[node.index])
        if key not in self._steps:
            choice = node.call.choice(splits)
            self._steps[key] = None if choice is None else self.priced(node, choice, hands)
        return self._steps[key]

    def follow(self, node: Node, hands: tuple[Forms, ...]) -> Step:
        """Returns the cheapest way for an op to take its operands as they come, or whole."""
        key = (node.call, hands, self.results_of_pinned[node.index])
        found = self._follows.get(key)
        if found is None:
            ways = {
                node.call.suggest(position, form): None
                for position, forms in enumerate(hands)
                for form in forms
            }
            choices = [c for way in ways if (c := node.call.choice(way))]
            found = self._follows[key] = self._cheapest(node, [*choices, node.call.whole], hands)
        return found

    def _cheapest(self, node: Node, choices: list[Choice], hands: tuple[Forms, ...]) -> Step:
        """Returns the step of the choice with the cheapest reshards, of equal ones a split one."""
        split_first = sorted(choices, key=lambda choice: not choice.splits.items)
        least = [sum(self._seconds(node, c, hands, self._least)) for c in split_first]
        promising, *others = sorted(range(len(least)), key=least.__getitem__)
        best = (self.priced(node, split_first[promising], hands, weighs=False), promising)
        for index in others:
            if least[index] <= best[0].seconds:
                # What can't be the cheapest isn't planned, which takes time.
                step = self.priced(node, split_first[index], hands, weighs=False)
                best = min(best, (step, index), key=lambda pair: (pair[0].seconds, pair[1]))
        return best[0]

    def priced(
        self, node: Node, choice: Choice, hands: tuple[Forms, ...], *, weighs: bool = True
    ) -> Step:
        """Returns what an op does by a choice.

        Args:
            node: The op.
            choice: How it is split.
            hands: In which forms each operand is at hand.
            weighs: Whether its weights lie as needed, and its own work counts.
        """
        start = choice.seconds if weighs else self._body_seconds(node, choice)
        weights = {*node.weights, *self.weights(node)} if weighs else set()
        seconds = sum(self._seconds(node, choice, hands, self.reshard, weights), start)
        made = tuple(
            self._kept(node, position, form) for position, form in enumerate(choice.produced)
        )
        return Step(choice, seconds, choice.consumed, made)

    def _body_seconds(self, node: Node, choice: Choice) -> float:
        """Returns what the communication within a body takes, as far as it exceeds the work."""
        if not choice.dist.body:
            return 0.0
        parts = self.space.mesh.axis_size(self.axis)
        return max(0.0, choice.seconds - node.call.whole.seconds / parts)

    def _kept(self, node: Node, position: int, made: Form) -> Form:
        """Returns the form of a result behind an op: as it is pinned, or as the op makes it."""
        pin = self.graph.pins[node.results[position]]
        return made if pin is None else self.space.only(pin, self.axis)

    def _seconds(
        self,
        node: Node,
        choice: Choice,
        hands: tuple[Forms, ...],
        price: Callable[[Forms, Form, int], float],
        weights: Collection[int] = (),
    ) -> Iterator[float]:
        """Yields the price of each reshard around an op; its weights lie as needed."""
        seen: set[tuple[int, Form]] = set()
        for position, (value, forms) in enumerate(zip(node.operands, hands, strict=True)):
            needed = choice.consumed[position]
            if position not in weights and (value, needed) not in seen:
                seen.add((value, needed))
                yield price(forms, needed, value)
        for position, made in enumerate(choice.produced):
            yield price((made,), self._kept(node, position, made), node.results[position])

    def reshard(self, sources: Forms, target: Form, value: int) -> float:
        """Returns the seconds to bring a value into a form, from the cheapest at hand."""
        itemsize = self.graph.itemsizes[value]
        return min(self._cost(source, target, itemsize) for source in sources)

    def _least(self, sources: Forms, target: Form, value: int) -> float:
        itemsize = self.graph.itemsizes[value]
        return min(self._least_cost(source, target, itemsize) for source in sources)

    def _least_cost(self, source: Form, target: Form, itemsize: int) -> float:
        if source is target:
            return 0.0
        return self.planner.least_seconds(source.layout, target.layout, itemsize)

    def _cost(self, source: Form, target: Form, itemsize: int) -> float:
        if source is target:
            return 0.0
        key = (source, target, itemsize)
        found = self._costs.get(key)
        if found is None:
            plan = self.planner.plan(source.layout, target.layout, itemsize)
            collectives = sum(move.bytes > 0 for move in plan.moves)
            extra = collectives * COLLECTIVE_OVERHEAD * self.latency
            found = self._costs[key] = plan.seconds + extra
        return found

    def _results_if_pinned(self, node: Node) -> tuple[int, ...]:
        """Returns the results of an op if one is pinned: then it isn't priced like equal ops."""
        pinned = any(self.graph.pins[value] is not None for value in node.results)
        return node.results if pinned else ()
