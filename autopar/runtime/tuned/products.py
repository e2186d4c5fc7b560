"""Products with the biases behind them, and lookups of tables that are dequantized by row."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from autopar.ir.ops.shape.view import RESHAPES
from autopar.ir.ops.tuning import BY_ROW, EMBEDDING, PRODUCT, SHIFTED
from autopar.runtime.tuned.graph import (
    DTYPE,
    Tuning,
    arguments_of,
    kind_of,
    per_channel,
    reader_of,
    same_type,
    shape_of,
    value_of,
)
from autopar.runtime.tuned.kernels import add_product


def tune_products(tuning: Tuning) -> None:
    """Adds biases within products."""
    for node in tuning.of_kind((PRODUCT,)):
        at, reader = node, reader_of(node)
        while reader is not None and kind_of(reader) in RESHAPES:
            at, reader = reader, reader_of(reader)
        if reader is None or shape_of(at)[-1:] != shape_of(node)[-1:]:
            continue
        bias = _bias(tuning, reader, at)
        if bias is None:
            continue
        if len(shape_of(bias)) != 1:
            bias = tuning.constant(bias, torch.flatten, bias)
        node.args, node.target = (bias, *node.args), add_product
        tuning.drop(reader, at)


def _bias(tuning: Tuning, reader: fx.Node, at: fx.Node) -> fx.Node | None:
    """Returns the bias that is added to a product; None if it isn't one."""
    if kind_of(reader) not in SHIFTED or reader.kwargs.get("alpha", 1) != 1:
        return None
    wanted = value_of(at)
    others = [arg for arg in arguments_of(reader)[:2] if arg is not at]
    if not same_type(reader, at) or wanted.dtype != DTYPE:
        return None
    (bias, *_) = (*others, None)
    if not tuning.is_constant(bias) or not per_channel(bias, wanted.shape, len(wanted.shape) - 1):
        return None
    same = shape_of(bias)[-1:] == wanted.shape[-1:] and value_of(bias).dtype == DTYPE
    return bias if same else None


def tune_lookups(tuning: Tuning) -> None:
    """Lets what is done to all rows of a table be done to those that are looked up."""
    for node in tuning.of_kind((EMBEDDING,)):
        chain: list[fx.Node] = []
        table, *others = arguments_of(node)
        while _keeps_rows(tuning, table, len(shape_of(node))):
            chain.append(table)
            table = arguments_of(table)[0]
        if not chain:
            continue
        rows = _again(tuning, node, node, table, *others)
        for each in reversed(chain):
            rows = _again(tuning, node, each, rows, *arguments_of(each)[1:])
        rows.meta["value"] = node.meta["value"]
        tuning.drop(node, rows)


def _again(tuning: Tuning, before: fx.Node, like: fx.Node, *args: Any) -> fx.Node:
    """Adds a call of a node's function with other arguments."""
    with tuning.graph.inserting_before(before):
        node = tuning.graph.create_node("call_function", like.target, args, like.kwargs)
    node.meta["op"] = before.meta["op"]
    return node


def _keeps_rows(tuning: Tuning, node: Any, rank: int) -> bool:
    """Returns whether a node does to each row of a table what it does to rows of any other shape.

    Args:
        tuning: The graph.
        node: The node.
        rank: How many dimensions what is looked up has.
    """
    if not tuning.is_constant(node) or kind_of(node) not in BY_ROW:
        return False
    table, *others = (arg for arg in arguments_of(node) if isinstance(arg, fx.Node))
    first = table is arguments_of(node)[0] and shape_of(table) == shape_of(node)
    shapes = [shape_of(each) if "value" in each.meta else [0] for each in others]
    return first and all(set(shape) <= {1} and len(shape) <= rank for shape in shapes)
