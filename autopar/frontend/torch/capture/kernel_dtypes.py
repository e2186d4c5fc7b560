"""Dtypes that fake tensors get wrong: those of kernels are put into a captured graph."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from autopar.frontend.lower.spelling import TORCH_HALVES


def correct_dtypes(graph: fx.Graph) -> None:
    """Gives what ops save, and gradients, the dtypes that kernels give them."""
    _correct_statistics(graph)
    _correct_running(graph)
    _correct_gradients(graph)
    _correct_attention(graph)


_RUNNING = torch.ops.aten._native_batch_norm_legit_functional.default
"""A batch norm that returns new running statistics behind what it saves."""

_STATISTICS = frozenset(
    (
        _RUNNING,
        torch.ops.aten._native_batch_norm_legit.no_stats,
        torch.ops.aten.native_layer_norm.default,
        torch.ops.aten.native_group_norm.default,
    )
)
"""Normalizations that return a mean and the inverse of a deviation behind their output."""


def _correct_statistics(graph: fx.Graph) -> None:
    """Corrects the dtype of what normalizations of halves save: their kernels keep it in float32.

    That is so where running statistics or weights are float32; fake tensors say otherwise.
    """
    for node in graph.nodes:
        if node.target not in _STATISTICS:
            continue
        given = [each.meta["val"].dtype for each in node.args if isinstance(each, fx.Node)]
        if given[0] not in TORCH_HALVES or torch.float32 not in given[1:]:
            continue
        output, *saved = node.meta["val"]
        saved[:2] = [each.float() for each in saved[:2]]
        _retype(node, (output, *saved))


def _correct_running(graph: fx.Graph) -> None:
    """Corrects the dtype of new running statistics: it is that of the old ones."""
    for node in graph.nodes:
        if node.target is _RUNNING:
            old = [each.meta["val"] for each in node.args[3:5] if isinstance(each, fx.Node)]
            output, mean, deviation, *new = node.meta["val"]
            new = [each.to(given.dtype) for each, given in zip(new, old, strict=True)]
            _retype(node, (output, mean, deviation, *new))


def _correct_gradients(graph: fx.Graph) -> None:
    """Corrects the dtype of the gradient of a group norm's input: it is the input's."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.native_group_norm_backward.default:
            gradient, *others = node.meta["val"]
            source = node.args[1]
            if gradient is not None and isinstance(source, fx.Node):
                _retype(node, (gradient.to(source.meta["val"].dtype), *others))


def _correct_attention(graph: fx.Graph) -> None:
    """Corrects the dtype of what attention in float64 saves: torch before 2.13 says float32."""
    for node in graph.nodes:
        if node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            output, saved, *others = node.meta["val"]
            if output.dtype == torch.float64:
                _retype(node, (output, saved.double(), *others))


def _retype(node: fx.Node, results: tuple[Any, ...]) -> None:
    node.meta["val"] = results
    for pick in node.users:
        if pick.target is operator.getitem:
            pick.meta["val"] = results[pick.args[1]]  # type: ignore[index]
