"""Products with the biases behind them, and lookups of tables that are dequantized by row."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from autopar.ir.expr.expression import IntExpr
from autopar.ir.ops.shape.strided import VIEWS
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
from autopar.runtime.tuned.kernels import HAS_ONEDNN, is_large, multiply, packed


def tune_products(tuning: Tuning) -> None:
    """Adds biases within products, and keeps their weights packed."""
    for node in tuning.of_kind((PRODUCT,)):
        left, right = arguments_of(node)
        if value_of(node).dtype != DTYPE:
            continue
        bias = _take_bias(tuning, node)
        wide = None
        if tuning.is_constant(right):
            wide = keep_packed(tuning, node, right, *shape_of(right))
        if wide is not None and not _is_mapped(tuning, right):
            right = None
        if bias is not None or wide is not None:
            node.args, node.target = (left, right, bias, wide), multiply


def keep_packed(
    tuning: Tuning, node: fx.Node, right: fx.Node, inner: IntExpr, columns: IntExpr
) -> fx.Node | None:
    """Returns a packed factor of what may become a large product, if there is room for it.

    Args:
        tuning: The graph.
        node: Holds the elements of the product.
        right: The factor.
        inner, columns: Its sizes.
    """
    sizes = [columns, inner, *shape_of(node)]
    known = [size for size in sizes if isinstance(size, int)]
    small = len(known) == len(sizes) and not is_large(math.prod(known[1:]), known[0])
    if 0 in known or small or not HAS_ONEDNN or not tuning.claim(right):
        return None
    return tuning.constant(right, packed, right)


def _is_mapped(tuning: Tuning, node: fx.Node) -> bool:
    """Returns whether a node holds a weight as it is in memory, whatever its shape."""
    while tuning.is_constant(node) and kind_of(node) in VIEWS:
        node = arguments_of(node)[0]
    return node.op == "placeholder"


def _take_bias(tuning: Tuning, node: fx.Node) -> fx.Node | None:
    """Takes the bias that is added to a product out of a graph; returns it if there is one."""
    at, reader = node, reader_of(node)
    while reader is not None and kind_of(reader) in RESHAPES:
        at, reader = reader, reader_of(reader)
    if reader is None or shape_of(at)[-1:] != shape_of(node)[-1:]:
        return None
    bias = _bias(tuning, reader, at)
    if bias is not None and len(shape_of(bias)) != 1:
        bias = tuning.constant(bias, torch.flatten, bias)
    if bias is not None:
        tuning.drop(reader, at)
    return bias


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
            given = [
                _again(tuning, node, node, arg, *others) if _has_rows(arg, each) else arg
                for arg in arguments_of(each)[1:]
            ]
            rows = _again(tuning, node, each, rows, *given)
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
    return first and all(_has_rows(each, node) or _is_one(each, rank) for each in others)


def _has_rows(node: Any, table: fx.Node) -> bool:
    """Returns whether a node holds a number for each row of a table."""
    if not isinstance(node, fx.Node) or "value" not in node.meta:
        return False
    return shape_of(node)[1:] == (1,) and shape_of(node)[0] == shape_of(table)[0] != 1


def _is_one(node: fx.Node, rank: int) -> bool:
    shape = shape_of(node) if "value" in node.meta else (0,)
    return set(shape) <= {1} and len(shape) <= rank
