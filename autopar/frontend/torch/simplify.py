"""Takes out of a captured graph what only undoes or repeats another op.

Autograd's formulas transpose the gradient of a weight twice, and flatten what was just unflattened.
Each such op would be carried out in every step, and keep a gradient from being what a product left.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def simplify(graph: fx.Graph) -> None:
    """Removes pairs of transpositions, and all but the last of views of views."""
    for node in list(graph.nodes):
        if node.target is aten.t.default:
            _cancel(node)
        elif node.target in _VIEWS:
            _shorten(node)
    for node in reversed(list(graph.nodes)):
        if node.target in (aten.t.default, *_VIEWS) and not node.users:
            graph.erase_node(node)


def _cancel(node: fx.Node) -> None:
    inner = node.args[0]
    assert isinstance(inner, fx.Node)
    if inner.target is aten.t.default:
        first = inner.args[0]
        assert isinstance(first, fx.Node)
        node.replace_all_uses_with(first)


def _shorten(node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    while source.target in _VIEWS:
        first = source.args[0]
        assert isinstance(first, fx.Node)
        source = first
    if _shape(source) == _shape(node):
        node.replace_all_uses_with(source)
    else:
        node.replace_input_with(node.args[0], source)  # type: ignore[arg-type]


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return tuple(value.shape)
