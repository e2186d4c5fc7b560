"""The `tensor` preset: which way to split each weight along one mesh axis.

A weight is what is contracted with an activation: by a matrix product, a convolution. It is split
by columns (a factor of the result) or by rows (the contracted factor). What that costs shows only
later: a column split is free now, and leaves a split activation that the next weight can take by
rows. So the program is walked forward with several states side by side; a state is how the live
activations lie, with the seconds of communication so far. States in which all of them lie alike
are one, and the cheaper past wins, as in dynamic programming; of the rest the best few are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.completion.presets.pinning import extend
from autopar.completion.presets.preset import AxisPreset
from autopar.completion.presets.steps import Forms, Step, Steps
from autopar.completion.presets.weights import minor_weights, parameters, readers, sources
from autopar.completion.problem.cuts import Cuts
from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.problem.splits import Splits
from autopar.ir.dims import DimLayout, SubDim, normalize_dim
from autopar.ir.expr.facts import can_exceed

BEAM = 128
"""How many states are kept."""

LEAST_BEAM = 8
"""How many states are kept of those in which tied weights lie alike."""

HORIZON = 64
"""How many ops ahead a value must be read for states to be told apart by it: more than a layer.

What a backward pass reads much later would keep all pasts apart."""


@dataclass(frozen=True, slots=True)
class _State:
    """A past: how live values lie (replicated ones are left out), and what it has cost."""

    live: Mapping[int, Forms]
    seconds: float
    weights: tuple[tuple[int, Form], ...]
    before: _State | None


def tensor(graph: Graph, along: AxisPreset) -> None:
    """Splits the weights of matrix products and convolutions by columns or rows.

    Which of the two is decided by predicted communication (`split_weights`).
    """
    for value, form in split_weights(graph, along.axis).items():
        extend(graph, value, form, along)


def split_weights(graph: Graph, axis: str) -> Mapping[int, Form]:
    """Returns the form of every weight that the preset splits along an axis.

    Args:
        graph: With the pins of earlier presets. Weights that are pinned along the axis keep it.
        axis: Name of a mesh axis.

    Returns:
        Per parameter, its form as if the axis were the only one.
    """
    key = split_weights, axis, *_pinned(graph, axis)
    return graph.once(key, lambda: _Walk(graph, axis).pins())


def _pinned(graph: Graph, axis: str) -> Iterator[tuple[int, Form]]:
    """Yields the pins that a walk along an axis heeds: those of results, or along the axis."""
    for value, pin in enumerate(graph.pins):
        if pin is not None and (axis in pin.splits.places or graph.producer[value] is not None):
            yield value, graph.space.only(pin, axis)


def place_weights(graph: Graph, axis: str, movable: frozenset[int]) -> dict[int, Form]:
    """Returns where within its dimension each pinned weight had better be split along an axis.

    Args:
        graph: With pins.
        axis: Name of a mesh axis.
        movable: The parameters, pinned along the axis, whose split may move within its dimension.

    Returns:
        Per weight among them, its form as if the axis were the only one.
    """
    forms = _Walk(graph, axis, movable).pins()
    return {value: form for value, form in forms.items() if value in movable}


class _Walk:
    """The states of one walk.

    With `movable`, only these parameters are decided on, and each keeps the dimension that it is
    pinned to. Without, all weights that aren't pinned are.
    """

    def __init__(self, graph: Graph, axis: str, movable: frozenset[int] | None = None) -> None:
        self.graph = graph
        self.space = graph.space
        self.axis = axis
        self.movable = movable
        self.nodes = [node for node in graph.nodes if node.op.phase == "forward"]
        self.use_indexes = [sorted(set(readers(graph, v))) for v in range(len(graph.values))]
        self.last_use = {value: uses[-1] for value, uses in enumerate(self.use_indexes) if uses}
        self.ended = [self._ended(node) for node in graph.nodes]
        self.contracted = frozenset(
            value
            for node in self.nodes
            for position in node.weights[:1]
            for value in parameters(graph, node.operands[position])
        )
        self.minor = frozenset() if movable is not None else minor_weights(graph)
        self.steps = Steps(graph, axis, self._weights)

    def pins(self) -> dict[int, Form]:
        pinned = {
            value: (self.space.only(pin, self.axis),)
            for value, pin in enumerate(self.graph.pins)
            if pin is not None
            and self.axis in pin.splits.places
            and value not in (self.movable or ())
        }
        states = [_State(pinned, 0.0, (), None)]
        for node in self.nodes:
            options = list(self._options(node))
            if options:
                after = [new for state in states for new in self._after(state, node, options)]
                states = self._best(after, node.index)
            else:
                # Their number stays, so it isn't worth the search for equal ones.
                states = [self._followed(state, node) for state in states]
        best = min(states, key=self._final_seconds)
        pins: dict[int, Form] = {}
        last: _State | None = best
        while last is not None:
            pins.update(last.weights)
            last = last.before
        return pins

    def _ended(self, node: Node) -> tuple[int, ...]:
        """Returns the values around an op that nothing behind it reads."""
        values = (v for v in node.tensors if self.last_use.get(v, -1) <= node.index)
        return tuple(v for v in values if v not in self.graph.outputs)

    def _final_seconds(self, state: _State) -> float:
        total = state.seconds
        for value in sorted(self.graph.outputs & state.live.keys()):
            whole = self.space.complete(state.live[value][0])
            total += self.steps.reshard(state.live[value], whole, value)
        return total

    def _best(self, states: list[_State], now: int) -> list[_State]:
        live = {value for state in states for value in state.live}
        near = {value for value in live if self._is_near(value, now)}
        unique: dict[frozenset[tuple[int, Forms]], _State] = {}
        for state in sorted(states, key=lambda s: s.seconds):
            told = frozenset(pair for pair in state.live.items() if pair[0] in near)
            unique.setdefault(told, state)
        # What is settled about tied weights shows its worth only late: it isn't for the beam.
        groups: dict[frozenset[tuple[int, Forms]], list[_State]] = {}
        for state in sorted(unique.values(), key=self._expected_seconds):
            tied = (pair for pair in state.live.items() if self.graph.steady[pair[0]])
            groups.setdefault(frozenset(tied), []).append(state)
        share = max(BEAM // len(groups), LEAST_BEAM)
        return [state for group in list(groups.values())[:BEAM] for state in group[:share]]

    def _is_near(self, value: int, now: int) -> bool:
        """Whether a value is read soon. How a tied weight lies is settled for whenever it is."""
        uses = self.use_indexes[value]
        following = bisect_right(uses, now)
        if following == len(uses):
            return False
        return self.graph.steady[value] or uses[following] <= now + HORIZON

    def _expected_seconds(self, state: _State) -> float:
        """What a state has cost and will: a sum that is pending must be reduced sometime."""
        total = state.seconds
        for value, forms in state.live.items():
            if forms[0].layout.partial:
                total += self.steps.reshard(forms, self.space.complete(forms[0]), value)
        return total

    def _after(
        self, state: _State, node: Node, options: list[tuple[Splits, int]]
    ) -> Iterator[_State]:
        """Yields the states behind an op with a weight: one per way to split it."""
        any_way = False
        hands = self._hands(state, node)
        for splits, weight in self._ways(state, node, options):
            step = self.steps.split(node, splits, hands)
            if step is None:
                continue
            # Of tables that are looked up, a split may leave the parameters whole: it is none.
            weights = self._origins(node.operands[weight], step.choice.consumed[weight]) or []
            asked = [(node.operands[weight], step.choice.consumed[weight]), *weights]
            if weights and self._stay(weights) and _agree(state, asked):
                any_way = True
                yield self._moved(state, node, step, tuple(weights), node.operands[weight])
        if any_way and node.index in self.minor:
            weight = options[0][1]
            for choice in self._with_whole(state, node, weight):
                step = self.steps.priced(node, choice, hands)
                yield self._moved(state, node, step, (), node.operands[weight])
        if not any_way:
            yield self._moved(state, node, self.steps.follow(node, hands), (), -1)

    def _with_whole(self, state: _State, node: Node, weight: int) -> dict[Choice, None]:
        """Returns the ways that leave a weight whole: whole, or as an activation comes in."""
        choices = {node.call.whole: None}
        for position, value in enumerate(node.operands):
            for form in state.live.get(value, ()):
                choice = node.call.choice(node.call.suggest(position, form))
                if choice is not None and self.axis not in choice.consumed[weight].splits.places:
                    choices[choice] = None
        return choices

    def _followed(self, state: _State, node: Node) -> _State:
        """Returns the state behind an op that takes its operands as they come, or whole."""
        if state.live.keys().isdisjoint(node.operands):
            return state
        step = self.steps.follow(node, self._hands(state, node))
        return self._moved(state, node, step, (), -1)

    def _ways(
        self, state: _State, node: Node, options: list[tuple[Splits, int]]
    ) -> dict[tuple[Splits, int], None]:
        """The fixed options, and the contraction as the activation comes in."""
        ways = dict.fromkeys(options)
        weight = options[0][1]
        present = {factor for dim in node.call.tensors[weight] for factor in dim}
        for position, value in enumerate(node.operands):
            for form in state.live.get(value, ()):
                place = node.call.suggest(position, form).places.get(self.axis)
                if place is not None and place[0] in present:
                    ways[self.space.table.splits_of({place[0]: place[1]}), weight] = None
        return ways

    def _moved(
        self,
        state: _State,
        node: Node,
        step: Step,
        weights: tuple[tuple[int, Form], ...],
        weight: int,
    ) -> _State:
        live = dict(state.live)
        for value, form in zip(node.operands, step.taken, strict=True):
            if value != weight and value in live and form not in live[value]:
                live[value] = (*live[value], form)
        for value, form in zip(node.results, step.made, strict=True):
            if form.splits.places or form.layout.partial:
                live[value] = (form,)
        for value, form in weights:
            if self.last_use[value] > node.index:
                live[value] = (form,)
        for value in self.ended[node.index]:
            live.pop(value, None)
        return _State(live, state.seconds + step.seconds, weights, state)

    def _options(self, node: Node) -> Iterator[tuple[Splits, int]]:
        """Yields the ways to split an op's weight, unless that is settled."""
        rule = node.call.rule
        for weight in self._weights(node):
            if self._is_settled(node.operands[weight]):
                return
            for dim in rule.operands[weight]:
                for factor in dim:
                    for layout in self._layouts(node, factor):
                        yield self.space.table.splits_of({factor: layout}), weight

    def _weights(self, node: Node) -> tuple[int, ...]:
        """Returns the position of an op's weight: contracted here, or, if tied, elsewhere."""
        tied = (
            position for position, value in enumerate(node.operands) if value in self.contracted
        )
        return node.weights[:1] or (() if node.steady else tuple(tied)[:1])

    def _layouts(self, node: Node, factor: str) -> dict[DimLayout, None]:
        """Returns how a factor may be split: evenly as a whole, or along a later cut."""
        rule = node.call.rule
        size = rule.sizes[factor]
        if size == 1 or factor not in node.call.splittable:
            return {}
        layouts: dict[DimLayout, None] = {(SubDim(size, (self.axis,)),): None}
        for dims, value in zip(rule.results, node.results, strict=True):
            for index, factors in enumerate(dims):
                if factors == (factor,):
                    sizes = self.graph.shared(Cuts).sizes(value, index, size)
                    for cut in range(len(sizes) if len(sizes) > 1 else 0):
                        dim = tuple(
                            SubDim(s, (self.axis,) if i == cut else ()) for i, s in enumerate(sizes)
                        )
                        if can_exceed(sizes[cut], 1):
                            layouts[normalize_dim(dim, self.space.mesh)] = None
        return layouts

    def _is_settled(self, value: int) -> bool:
        """Whether the parameters behind a weight leave nothing to decide."""
        behind = sources(self.graph, value, lambda each: self.graph.pins[each] is None)
        return any(map(self._is_kept, behind))

    def _is_kept(self, value: int) -> bool:
        if self.movable is not None and self.graph.producer[value] is None:
            return value not in self.movable
        pin = self.graph.pins[value]
        return pin is not None and (self.axis in pin.splits.places or value in self.graph.fixed)

    def _stay(self, weights: list[tuple[int, Form]]) -> bool:
        """Whether movable parameters are split in the dimension that they are pinned to."""
        for value, form in weights:
            pin = self.graph.pins[value]
            if self.movable is not None and pin is not None and self.axis in pin.splits.places:
                kept, chosen = pin.splits.places[self.axis], form.splits.places[self.axis]
                if kept[0] != chosen[0]:
                    return False
        return True

    def _origins(self, value: int, form: Form) -> list[tuple[int, Form]] | None:
        """Returns the forms of the parameters from which a weight in this form is made."""
        origins: list[tuple[int, Form]] = []
        seen: set[tuple[int, Form]] = set()
        left = [(value, form)]
        while left:
            value, form = left.pop()
            if self.axis not in form.splits.places or (value, form) in seen:
                continue
            seen.add((value, form))
            producer = self.graph.producer[value]
            if producer is None:
                origins.append((value, form))
                continue
            node, position = producer
            choice = node.call.choice(node.call.suggest(len(node.operands) + position, form))
            if choice is None or choice.produced[position] is not form:
                return None
            left.extend(reversed(list(zip(node.operands, choice.consumed, strict=True))))
        return origins

    def _hands(self, state: _State, node: Node) -> tuple[Forms, ...]:
        """Returns in which forms each operand of an op is at hand."""
        live = state.live
        return tuple(live.get(v) or (self.graph.replicated(v),) for v in node.operands)


def _agree(state: _State, weights: list[tuple[int, Form]]) -> bool:
    """Whether a weight, and what it is made of, are asked for as an earlier op decided."""
    return all(state.live.get(value, (form,))[0] is form for value, form in weights)
