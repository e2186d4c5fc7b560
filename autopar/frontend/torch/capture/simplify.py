"""Takes out of a captured graph what only undoes or repeats another op.

Autograd's formulas transpose the gradient of a weight twice, and flatten what was just unflattened.
Code takes a batch apart, and puts it together again. Each such op would be carried out in every
step, and keep a gradient from being what a product left, or a batch from being followed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from autopar.frontend.lower.open_sizes import is_same_shape

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)


def simplify(graph: fx.Graph) -> None:
    """Removes pairs of transpositions, views of views but the last, and joins of all parts.

    Conjugates of numbers, which gradients of products with them ask for, are numbers too.
    """
    joined: set[fx.Node] = set()
    for node in list(graph.nodes):
        if node.target is aten.t.default:
            _cancel(node)
        elif node.target is aten.cat.default:
            joined |= _join(node)
        elif node.target in _VIEWS:
            _shorten(node)
        elif node.target is aten._conj.default and isinstance(node.args[0], complex):
            _conjugate(graph, node, node.args[0])
    for node in reversed(list(graph.nodes)):
        if (node.target in (aten.t.default, *_VIEWS) or node in joined) and not node.users:
            graph.erase_node(node)


def _conjugate(graph: fx.Graph, node: fx.Node, number: complex) -> None:
    def replaced(argument: fx.Node) -> Any:
        return number.conjugate() if argument is node else argument

    for user in list(node.users):
        user.args = fx.node.map_arg(user.args, replaced)
        user.kwargs = fx.node.map_arg(user.kwargs, replaced)
    graph.erase_node(node)


def _cancel(node: fx.Node) -> None:
    inner = node.args[0]
    assert isinstance(inner, fx.Node)
    if inner.target is aten.t.default:
        first = inner.args[0]
        assert isinstance(first, fx.Node)
        node.replace_all_uses_with(first)


def _join(node: fx.Node) -> set[fx.Node]:
    """Replaces what is made of all the parts of a tensor, in their order, by the tensor.

    Returns what may be left without a reader.
    """
    parts: Any = node.args[0]
    dim = _dim(node, 1)
    whole, at = None, 0
    for each in parts:
        found = _part(each, dim)
        if found is None or found[0] is not (whole or found[0]) or found[1] != at:
            return set()
        whole, _, at = found
    # A result has memory of its own.
    returned = any(user.op == "output" for user in node.users)
    if whole is None or not _are_alike(whole, node) or returned:
        return set()
    node.replace_all_uses_with(whole)
    return {node, *parts, *(each.args[0] for each in parts if each.args[0] is not whole)}


def _part(node: fx.Node, dim: int) -> tuple[fx.Node, int, int] | None:
    """Returns of which tensor a node is a part along a dimension, from where and up to where."""
    source: Any = node.args[0] if node.args else None
    if node.target is aten.slice.Tensor and _dim(node, 1) == dim:
        first, last, step = _bounds(*node.args[2:])
        size = source.meta["val"].shape[dim]
        if not all(each is None or isinstance(each, int) for each in (first, last, size)):
            return None
        first, last, _ = slice(first, last).indices(size)
        return (source, first, last) if step == 1 else None
    if node.target is not operator.getitem or source.target not in _SPLITS:
        return None
    if _dim(source, 2) != dim:
        return None
    at: Any = node.args[1]
    sizes = [each.shape[dim] for each in source.meta["val"]]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return source.args[0], sum(sizes[:at]), sum(sizes[: at + 1])


def _bounds(first: Any = 0, last: Any = None, step: Any = 1) -> tuple[Any, Any, Any]:
    return first, last, step


def _dim(node: fx.Node, at: int) -> int:
    """Returns the dimension that an argument of a node names, of its first or of its result."""
    dim: Any = node.args[at] if len(node.args) > at else node.kwargs.get("dim", 0)
    value = node.meta["val"]
    rank = (value[0] if isinstance(value, (list, tuple)) else value).ndim
    return int(dim) % int(rank)


def _shorten(node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    while source.target in _VIEWS:
        first = source.args[0]
        assert isinstance(first, fx.Node)
        source = first
    if _are_alike(source, node):
        node.replace_all_uses_with(source)
    else:
        node.replace_input_with(node.args[0], source)  # type: ignore[arg-type]


def _are_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two tensors have the same shape, whatever open sizes are."""
    values = one.meta["val"], other.meta["val"]
    assert isinstance(values[0], Tensor)
    assert isinstance(values[1], Tensor)
    return is_same_shape(*values)
