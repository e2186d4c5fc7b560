"""What a model's functions unfold to, counted before anything is unfolded.

A function that calls another ten times, which calls another ten times, is a small file and a model
of billions of nodes. Counting takes time linear in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from autopar.frontend.onnx.model.cycles import find_cycle
from autopar.frontend.onnx.model.problems import Problems
from autopar.frontend.onnx.model.schema import function_key, normal_domain

NODE_BUDGET = 50_000
"""Nodes, or results of nodes, that one import runs at most, iterations of loops included."""
MOST_NESTED = 64
"""Functions, branches and loop bodies that lie within one another at most."""

Key = tuple[str, str, str]


def check_expansion(model: ModelProto, problems: Problems) -> None:
    """Notes functions that call themselves, too deep ones, and too many nodes."""
    bodies = {function_key(function): function for function in model.functions}
    calls = {key: list(_called(body.node, bodies)) for key, body in bodies.items()}
    cycle = find_cycle(calls)
    if cycle:
        path = " -> ".join(name for _, name, _ in cycle)
        problems.add("", f"functions call each other in a circle: {path}")
        return
    costs = _Costs()
    for key in _callees_first(calls):
        costs.add(key, bodies[key])
    if costs.depth(model.graph.node) > MOST_NESTED:
        problems.add("", f"its functions are nested more than {MOST_NESTED} deep", "inline some")
    count = costs.nodes(model.graph.node)
    if count > NODE_BUDGET:
        what = f"it has at least {count:.4g} nodes or results once its functions are inlined"
        problems.add("", f"{what}; more than {NODE_BUDGET} nodes aren't supported")


class _Costs:
    """How many nodes functions unfold to, at least, and how deeply they are nested."""

    def __init__(self) -> None:
        self.known: dict[Key, tuple[int, int]] = {}

    def add(self, key: Key, body: FunctionProto) -> None:
        """Counts a function whose callees were counted."""
        self.known[key] = (self.nodes(body.node), self.depth(body.node))

    def nodes(self, nodes: Iterable[NodeProto]) -> int:
        """Returns how many nodes these run at least: a loop may run no iteration."""
        return sum(map(self._node, nodes))

    def _node(self, node: NodeProto) -> int:
        own = max(1, len(node.output))
        branches = [self.nodes(graph.node) for graph in subgraphs(node)]
        if node.op_type == "If" and branches:
            return own + min(branches)
        return own + self.known.get(key_of(node), (0, 0))[0]

    def depth(self, nodes: Iterable[NodeProto]) -> int:
        """Returns how many functions lie within one another."""
        return max((self._depth(node) for node in nodes), default=0)

    def _depth(self, node: NodeProto) -> int:
        inner = max((self.depth(graph.node) for graph in subgraphs(node)), default=0)
        callee = self.known.get(key_of(node))
        return inner if callee is None else max(inner, callee[1] + 1)


def key_of(node: NodeProto) -> Key:
    """Returns the key of the function that a node calls, if it calls one."""
    return normal_domain(node.domain), node.op_type, node.overload


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yields the graphs among a node's attributes: branches and loop bodies."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _called(nodes: Iterable[NodeProto], bodies: Mapping[Key, FunctionProto]) -> Iterator[Key]:
    """Yields the functions that nodes call, each once."""
    found: dict[Key, None] = {}
    pending = [iter(nodes)]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        if key_of(node) in bodies:
            found[key_of(node)] = None
        pending.extend(iter(graph.node) for graph in subgraphs(node))
    yield from found


def _callees_first(calls: Mapping[Key, Sequence[Key]]) -> Iterator[Key]:
    """Yields each function behind those that it calls."""
    done: set[Key] = set()
    for start in calls:
        pending = [start]
        while pending:
            key = pending[-1]
            missing = [other for other in calls[key] if other not in done]
            if key in done or not missing:
                pending.pop()
                if key not in done:
                    done.add(key)
                    yield key
            else:
                pending.extend(missing)
