"""What is computed of weights alone: once, and again when they have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from autopar.ir.emitted import unused
from autopar.runtime.tuned.graph import Tuning, nbytes

_version = attrgetter("_version")


class _Kept(NamedTuple):
    """What was computed of weights, and of which."""

    weights: Sequence[Tensor]
    versions: Sequence[object]
    results: tuple[Tensor, ...]


class Constants:
    """What a graph wants that is computed of weights.

    Args:
        compute: Computes it of the weights.
        places: Where these are among the arguments of the graph.
    """

    def __init__(self, compute: Callable[..., tuple[Tensor, ...]], places: Sequence[int]) -> None:
        self._compute = compute
        self._places = places
        self._kept: dict[tuple[int, ...], _Kept] = {}

    def of(self, arguments: Sequence[Any]) -> tuple[Tensor, ...]:
        """Returns it for the weights among the arguments of the graph.

        Ranks on a virtual mesh share a graph, and have weights of their own.
        """
        weights = [arguments[at] for at in self._places]
        versions = _versions(weights)
        key = tuple(map(id, weights))
        kept = self._kept.get(key)
        if kept is None or kept.versions != versions or not all(map(is_, kept.weights, weights)):
            with torch.no_grad():
                kept = _Kept(weights, versions, self._compute(*weights))
            self._kept[key] = kept
        return kept.results


def _versions(weights: Sequence[Tensor]) -> list[object]:
    """Returns what is another after a weight was written.

    Those that were made in inference mode don't tell: it is always another for them.
    """
    try:
        return list(map(_version, weights))
    except RuntimeError:
        return [object()]


def taken_out(tuning: Tuning) -> Constants:
    """Takes what is computed of weights out of a graph, whose last arguments it becomes.

    What there is no room for stays.
    """
    graph, constants = tuning.graph, tuning.constants
    wanted = [
        node
        for node in constants
        if node.op != "placeholder"
        and not all(map(tuning.is_constant, node.users))
        and ("value" in node.meta or "bytes" in node.meta)
        and ("bytes" in node.meta or not nbytes(node) or tuning.claim(node))
    ]
    apart, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    given = [node for node in graph.nodes if node.op == "placeholder"]
    read = _read_by(wanted)
    places = [at for at, node in enumerate(given) if node in read]
    for node in constants:
        if node in read:
            copies[node] = apart.node_copy(node, copies.__getitem__)
    apart.output(tuple(copies[node] for node in wanted))
    last, taken = given[-1], {str(node.target) for node in given}
    for number, node in enumerate(wanted):
        with graph.inserting_after(last):
            last = graph.placeholder(unused(f"constant_{number}", taken))
        last.meta["op"] = None
        node.replace_all_uses_with(last)
    for node in reversed(constants):
        if node.op != "placeholder" and not node.users:
            graph.erase_node(node)
    module = fx.GraphModule(torch.nn.Module(), apart, class_name="constants")
    return Constants(module.forward, places)


def _read_by(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Returns nodes, and what they are computed of."""
    found, open_ones = set[fx.Node](), [*nodes]
    while open_ones:
        node = open_ones.pop()
        if node not in found:
            found.add(node)
            open_ones.extend(node.all_input_nodes)
    return found
