"""Ops that are added to a captured graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

_ORIGIN = ("stack_trace", "custom", "seq_nr", "partitioner_tag")
"""What of a node's notes says where it comes from."""


def add_before(node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Adds an op of other nodes before a node, with its origin."""
    with node.graph.inserting_before(node):
        added = node.graph.call_function(target, args, kwargs)
    modes = [each.meta["val"].fake_mode for each in added.all_input_nodes if _is_fake(each)]
    given, named = fx.node.map_arg((args, kwargs), lambda each: each.meta["val"])
    with modes[0]:
        value = target(*given, **named)
    assert isinstance(value, Tensor)
    added.meta.update({key: node.meta[key] for key in _ORIGIN if key in node.meta}, val=value)
    return added


def _is_fake(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], FakeTensor)
