"""Shift: neighbouring ops change their split together.

One step of `local_search` at a time only moves a reshard from one side of an op to the other, as
long as the ops behind it want what it had before. So a change is carried on, op by op, to those
that agreed with the last one until now: from a product through the views behind it, or from the
gradient of a tied weight to the sum that it is part of. It ends at ops that compute where their
weight lies.
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.problem.splits import Splits

MAX_REGION = 8
"""The most ops that change together."""


def shifts(
    graph: Graph, choices: list[Choice], node: Node, splits: Splits
) -> Iterator[dict[int, Choice]]:
    """Yields ever more changes that go with other splits of an op, if it can be split so."""
    choice = node.call.choice(splits)
    if choice is None:
        return
    current = choices[node.index].splits.places
    axes = [a for a in graph.space.axes if splits.places.get(a) != current.get(a)]
    changes = {node.index: choice}
    queue = [node]
    while queue:
        last = queue.pop(0)
        for other, position, form in _agreeing(graph, choices, last, changes[last.index]):
            if other.index in changes or _computes_by_weight(graph, choices, other, axes):
                continue
            follows = _following(graph, choices[other.index], other, position, form, axes)
            if follows is not None:
                changes[other.index] = follows
                queue.append(other)
                yield dict(changes)
                if len(changes) == MAX_REGION:
                    return


def _agreeing(
    graph: Graph, choices: list[Choice], node: Node, changed: Choice
) -> Iterator[tuple[Node, int, Form]]:
    """Yields the neighbours that lose their agreement with an op: (op, position, new form)."""
    space = graph.space
    before = _around(choices[node.index])
    after = _around(changed)
    for value, old, new in zip(node.tensors, before, after, strict=True):
        old, new = space.complete(old), space.complete(new)
        if old is new or graph.pins[value] is not None:
            continue
        for other in graph.neighbours(value):
            if other is node or other.steady or not other.call.has_rule:
                continue
            if other.index in graph.decided:
                continue
            position = other.tensors.index(value)
            if space.complete(_around(choices[other.index])[position]) is old:
                yield other, position, new


def _computes_by_weight(graph: Graph, choices: list[Choice], node: Node, axes: list[str]) -> bool:
    """Whether an op is split as its weight is, which `local_search` may change, or is settled."""
    settled = graph.settled.get(node.index)
    if settled is not None and not settled.places.keys().isdisjoint(axes):
        return True
    places = choices[node.index].splits.places
    for position in node.weights:
        pin = graph.pins[node.operands[position]]
        producer = graph.producer[node.operands[position]]
        if producer is not None:
            pin = choices[producer[0].index].produced[producer[1]]
        if pin is not None:
            suggested = node.call.suggest(position, pin).places
            if any(a in suggested and places.get(a) == suggested[a] for a in axes):
                return True
    return False


def _following(
    graph: Graph, current: Choice, node: Node, position: int, form: Form, axes: list[str]
) -> Choice | None:
    """Returns the choice of an op that takes over some axes from a tensor's new form."""
    table = graph.space.table
    wanted = node.call.suggest(position, form)
    splits = current.splits
    for axis in axes:
        splits = table.without(splits, axis)
        if axis in wanted.places:
            merged = table.merged(splits, axis, wanted)
            if merged is None:
                return None
            splits = merged
    choice = node.call.choice(splits)
    if choice is None or graph.space.complete(_around(choice)[position]) is not form:
        return None
    return choice


def _around(choice: Choice) -> tuple[Form, ...]:
    return (*choice.consumed, *choice.produced)
