"""Shift: an op changes its split together with the views around it.

A view computes nothing and follows what is next to it. So between two products, one step of
`refine` at a time only moves a reshard from one side of a view to the other: the op behind the view
has to change with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.completion.call import Choice
from autopar.completion.graph import Graph, Node
from autopar.completion.space import Form
from autopar.completion.splits import Splits

MAX_VIEWS = 4
"""The most views in a row that change with an op."""


def shifted(
    graph: Graph, choices: list[Choice], node: Node, splits: Splits
) -> dict[int, Choice] | None:
    """Returns the choices of an op with other splits, and of the views around it.

    None if the op can't be split so, or no view around it would change.
    """
    choice = node.call.choice(splits)
    if choice is None:
        return None
    changes = {node.index: choice}
    for at, value in enumerate(node.operands):
        _before(graph, choices, value, choice.consumed[at], changes)
    for at, value in enumerate(node.results):
        _behind(graph, choices, value, choice.produced[at], changes)
    return changes if len(changes) > 1 else None


def through_views(graph: Graph, choices: list[Choice], node: Node) -> Iterator[tuple[Splits, int]]:
    """Yields the splits that are suggested by what lies behind the views before an op."""
    for at, value in enumerate(node.operands):
        views: list[Node] = []
        while len(views) < MAX_VIEWS and (view := _view(graph, value)) is not None:
            views.append(view)
            value = view.operands[0]
        producer = graph.producer[value]
        if not views or producer is None:
            continue
        form = choices[producer[0].index].produced[producer[1]]
        for view in reversed(views):
            made = view.call.choice(view.call.suggest(0, form))
            form = made.produced[0] if made is not None else graph.replicated(view.results[0])
        splits = node.call.suggest(at, form)
        if splits.items:
            yield splits, at


def _view(graph: Graph, value: int) -> Node | None:
    """Returns the op that makes a value by moving the elements of another, if it is one."""
    producer = graph.producer[value]
    return producer[0] if producer is not None and _is_view(graph, producer[0]) else None


def _is_view(graph: Graph, node: Node) -> bool:
    alone = len(node.operands) == 1 and len(node.results) == 1 and not node.steady
    free = graph.pins[node.results[0]] is None if alone else False
    return free and node.call.has_rule and not node.call.rule.work


def _before(
    graph: Graph, choices: list[Choice], value: int, form: Form, changes: dict[int, Choice]
) -> None:
    """Adds the views before an op that had better make the form it needs."""
    for _ in range(MAX_VIEWS):
        view = _view(graph, value)
        if view is None or len(graph.uses[value]) > 1:
            return
        choice = view.call.choice(view.call.suggest(1, form))
        if choice is None or choice is choices[view.index]:
            return
        changes[view.index] = choice
        value, form = view.operands[0], choice.consumed[0]


def _behind(
    graph: Graph, choices: list[Choice], value: int, form: Form, changes: dict[int, Choice]
) -> None:
    """Adds the views behind an op that had better take the form it makes."""
    for _ in range(MAX_VIEWS):
        readers = graph.uses[value]
        if graph.pins[value] is not None or len(readers) != 1:
            return
        view = readers[0][0]
        if not _is_view(graph, view):
            return
        choice = view.call.choice(view.call.suggest(0, form))
        if choice is None or choice is choices[view.index]:
            return
        changes[view.index] = choice
        value, form = view.results[0], choice.produced[0]
