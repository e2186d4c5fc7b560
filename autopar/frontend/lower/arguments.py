"""The arguments of a node of an exported graph, as its op's schema names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

_TORCH = ("aten", "prims", "quantized_decomposed")
"""The namespaces of torch's own ops."""

_LEFT_OUT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")
"""Arguments that say where and in which strides a result is stored."""


def output_mask(node: fx.Node) -> Sequence[bool]:
    """Returns which results of a gradient op are asked for; empty if all are."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    for position, argument in enumerate(arguments):
        if argument.name == "output_mask":
            given = node.args[position] if position < len(node.args) else None
            mask = node.kwargs.get("output_mask", given)
            return mask if isinstance(mask, (list, tuple)) else ()
    return ()


def given_arguments(node: fx.Node, target: torch._ops.OpOverload) -> Iterable[tuple[str, object]]:
    """Yields the arguments by schema name, those left out that equal their default."""
    for position, argument in enumerate(target._schema.arguments):
        if argument.name in _LEFT_OUT and target.namespace in _TORCH:
            continue
        if position < len(node.args) and not argument.kwarg_only:
            value = node.args[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        else:
            continue
        if not (argument.has_default_value() and _equal(value, argument.default_value)):
            yield argument.name, value


def _equal(value: object, default: object) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(value) == list(default)
    return type(value) is type(default) and value == default
