"""What a condition picks is computed, and what it doesn't pick isn't.

Branches of a file are both in the program, which picks results by a tensor. Here a tensor is a
number that the host can read, so each branch becomes a graph of its own, of which one runs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from autopar.ir.collectives import is_collective
from autopar.ir.ops.tuning import PICKED
from autopar.runtime.execute.control import Choice
from autopar.runtime.tuned.graph import (
    Tuning,
    arguments_of,
    is_pure,
    kind_of,
    same_type,
    shape_of,
)

LEAST = 4
"""Ops of both branches for which it pays."""


def compute_chosen(tuning: Tuning) -> list[fx.GraphModule]:
    """Lets conditions decide what is computed; returns the graphs of branches."""
    graph = tuning.graph
    if any(map(_has_effects, graph.nodes)):
        return []
    found: list[fx.GraphModule] = []
    for picks in _picks(tuning).values():
        order = {node: at for at, node in enumerate(graph.nodes)}
        if not all(pick in order for pick in picks):  # Some are in a branch of another choice.
            continue
        last = order[picks[-1]]
        if any(order[reader] < last for pick in picks for reader in pick.users):
            continue
        bodies = [_body(tuning, picks, side) for side in (1, 2)]
        if sum(map(len, bodies)) >= LEAST:
            found += _choose(tuning, picks, bodies)
    return found


def _has_effects(node: fx.Node) -> bool:
    """Returns whether an op does more than to return something: then it can't wait."""
    if node.op == "placeholder" or node.op == "output" or node.target is operator.getitem:
        return False
    return not node.users or is_collective(kind_of(node))


def _picks(tuning: Tuning) -> dict[fx.Node, list[fx.Node]]:
    """Returns the ops that pick all of one tensor or of another, by the condition."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in tuning.of_kind((PICKED,)):
        condition, *others = arguments_of(node)
        known = all("value" in each.meta for each in node.all_input_nodes)
        if known and not shape_of(condition) and all(same_type(node, each) for each in others):
            found.setdefault(condition, []).append(node)
    return found


def _body(tuning: Tuning, picks: Sequence[fx.Node], side: int) -> dict[fx.Node, None]:
    """Returns what is computed for one side alone, in order."""
    body: dict[fx.Node, None] = {}
    for node in reversed(tuning.graph.nodes):
        if node.op != "call_function" or tuning.is_constant(node) or not is_pure(node):
            continue
        if node.users and all(
            reader in body or (reader in picks and _is_only(node, reader, side))
            for reader in node.users
        ):
            body[node] = None
    return dict.fromkeys(reversed(body))


def _is_only(node: fx.Node, pick: fx.Node, side: int) -> bool:
    """Returns whether an op that picks reads a node as one side of it, and as nothing else."""
    return [at for at, each in enumerate(arguments_of(pick)) if each is node] == [side]


def _choose(
    tuning: Tuning,
    picks: Sequence[fx.Node],
    bodies: Sequence[dict[fx.Node, None]],
) -> list[fx.GraphModule]:
    """Puts a call of one of two graphs in the place of branches; returns these."""
    condition = arguments_of(picks[0])[0]
    wanted = [[arguments_of(pick)[side] for pick in picks] for side in (1, 2)]
    given = [_given(*each) for each in zip(bodies, wanted, strict=True)]
    branches = [_branch(*each) for each in zip(bodies, given, wanted, strict=True)]
    inputs = dict.fromkeys(node for each in given for node in each)
    places = {node: at for at, node in enumerate(inputs)}
    numbers = [tuple(map(places.__getitem__, each)) for each in given]
    target = tuning.add(f"choice_{condition.name}", Choice(branches, numbers))
    with tuning.graph.inserting_before(picks[-1]):
        chosen = tuning.graph.call_module(target, (condition, *inputs))
        chosen.meta["op"] = picks[0].meta["op"]
        for at, pick in enumerate(picks):
            result = tuning.graph.call_function(operator.getitem, (chosen, at))
            result.meta.update(pick.meta)
            pick.replace_all_uses_with(result)
    for node in (*reversed(picks), *(each for body in bodies for each in reversed(body))):
        tuning.graph.erase_node(node)
    return branches


def _given(body: Mapping[fx.Node, None], wanted: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns what a branch takes from outside."""
    read = (each for node in body for each in node.all_input_nodes)
    return [node for node in dict.fromkeys((*read, *wanted)) if node not in body]


def _branch(
    body: Mapping[fx.Node, None], given: Sequence[fx.Node], wanted: Sequence[fx.Node]
) -> fx.GraphModule:
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in given:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta, op=None)
    for node in body:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(map(copies.__getitem__, wanted)))
    return fx.GraphModule(torch.nn.Module(), graph, class_name="branch")
