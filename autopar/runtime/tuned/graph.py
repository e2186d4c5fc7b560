"""An emitted graph while it is tuned: what its nodes are, and which depend on weights alone."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import fx, nn

from autopar.ir.collectives import is_collective
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Value

DTYPE = "f32"
"""Of products and convolutions that are tuned."""

MOST_KEPT = 64 << 20
"""Bytes of what is computed of weights that a rank keeps."""


class Tuning:
    """A graph that is rewritten.

    Args:
        module: What `emit` returned.
        weights: The names of values that are the same in every call.
    """

    def __init__(self, module: fx.GraphModule, weights: Collection[str]) -> None:
        self._module = module
        self.graph = module.graph
        self._weights = weights
        self._constant: dict[fx.Node, None] = {}
        self._left = MOST_KEPT
        self._last = self._behind_weights()

    def of_kind(self, kinds: Collection[str]) -> list[fx.Node]:
        """Returns the nodes that compute ops of some kinds, but not of weights alone."""
        nodes = (node for node in self.graph.nodes if not self.is_constant(node))
        return [node for node in nodes if kind_of(node) in kinds]

    def is_constant(self, node: object) -> bool:
        """Returns whether a node is a weight, or computed of weights alone."""
        return node in self._constant

    def claim(self, node: fx.Node) -> bool:
        """Returns whether there is room for as much as a node holds, which is taken then."""
        needed = nbytes(node)
        if needed > self._left:
            return False
        self._left -= needed
        return True

    def constant(self, like: Any, function: Callable[..., Any], *args: Any) -> fx.Node:
        """Adds what is computed of weights, and holds as much as another node does."""
        with self.graph.inserting_after(self._last):
            self._last = node = self.graph.call_function(function, args)
        node.meta.update(op=like.meta["op"], bytes=nbytes(like))
        self._constant[node] = None
        return node

    def drop(self, node: fx.Node, instead: fx.Node) -> None:
        """Lets another node take the place of one."""
        node.replace_all_uses_with(instead)
        self.graph.erase_node(node)

    def add(self, name: str, module: nn.Module) -> str:
        """Adds a module that the graph may call; returns by which name."""
        self._module.add_submodule(name, module)
        return name

    @property
    def constants(self) -> list[fx.Node]:
        """What is computed of weights, in order."""
        return [node for node in self.graph.nodes if self.is_constant(node)]

    def _behind_weights(self) -> fx.Node:
        """Moves what is computed of weights before all else; returns the last of it."""
        nodes = list(self.graph.nodes)
        given = [node for node in nodes if node.op == "placeholder"]
        for node in given:
            if "value" in node.meta and value_of(node).name in self._weights:
                self._constant[node] = None
        for node in nodes[len(given) :]:
            read = node.all_input_nodes
            if read and is_pure(node) and all(map(self.is_constant, read)):
                given[-1].append(node)
                given.append(node)
                self._constant[node] = None
        last: fx.Node = given[-1] if given else nodes[0]
        return last


def kind_of(node: fx.Node) -> str:
    """Returns the kind of the op that a node computes, as the program has it; "" for others."""
    op = node.meta.get("op")
    if node.op != "call_function" or op is None or node.target is operator.getitem:
        return ""
    return str(op.kind)


def value_of(node: fx.Node) -> Value:
    """Returns the value that a node holds."""
    found: Value = node.meta["value"]
    return found


def arguments_of(node: fx.Node) -> tuple[Any, ...]:
    """Returns what the function of a node is given by position."""
    return tuple(node.args)


def set_argument(node: fx.Node, at: int, argument: Any) -> None:
    """Lets the function of a node be given something else."""
    node.args = (*node.args[:at], argument, *node.args[at + 1 :])


def is_number(argument: object) -> bool:
    """Returns whether an argument is a number of Python's, by which dtypes stay as they are."""
    return isinstance(argument, (int, float)) and not isinstance(argument, bool)


def shape_of(node: fx.Node) -> Sequence[IntExpr]:
    """Returns the sizes of what a node holds; those of a weight are numbers."""
    return value_of(node).shape


def same_type(one: fx.Node, other: fx.Node) -> bool:
    """Returns whether two nodes hold values of the same dtype and shape."""
    ours, theirs = value_of(one), value_of(other)
    return (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


def reader_of(node: fx.Node) -> fx.Node | None:
    """Returns who alone reads a node."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def nbytes(node: fx.Node) -> int:
    """Returns how many bytes what is computed of weights has."""
    if "value" not in node.meta:
        return int(node.meta.get("bytes", 0))
    sizes = [size for size in shape_of(node) if isinstance(size, int)]
    return math.prod(sizes) * value_of(node).itemsize


def per_channel(weight: object, shape: Sequence[IntExpr], dim: int) -> bool:
    """Returns whether a weight that meets a tensor is a number for each entry of a dimension.

    It may be a number for all, too.

    Args:
        weight: The node.
        shape: That of the tensor.
        dim: The dimension.
    """
    if not isinstance(weight, fx.Node) or "value" not in weight.meta:
        return False
    sizes = [*[1] * (len(shape) - len(shape_of(weight))), *shape_of(weight)]
    wanted: list[IntExpr] = [1] * len(shape)
    wanted[dim] = sizes[dim] if sizes[dim] == 1 else shape[dim]
    return len(sizes) == len(shape) and sizes == wanted


def is_pure(node: fx.Node) -> bool:
    """Returns whether a node does nothing but compute something."""
    if node.op == "call_function" and node.target is operator.getitem:
        return True
    return bool(kind_of(node)) and not is_collective(kind_of(node))
