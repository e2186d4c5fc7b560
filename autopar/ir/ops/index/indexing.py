"""Lookups along one dimension, at positions that an index operand holds."""

from __future__ import annotations

from autopar.ir.expr.expression import prod
from autopar.ir.ops.shape.layout import moved
from autopar.ir.ops.shape.sizes import index_of
from autopar.ir.ops.table import (
    COMPARISON,
    MOVED,
    RuleFunction,
    Table,
    along_index,
    axis,
    factors,
    operand_dims,
    row,
    whole,
)
from autopar.ir.rules.rule import Dims, OpCall, Rule, Shard, build_rule, make_rule


def outside(call: OpCall) -> str:
    """Returns the monoid that joins shards of a lookup: outside its block, a shard has zeros."""
    return "any" if call.results[0].dtype == "bool" else "sum"


def embedding(call: OpCall) -> Rule | None:
    """aten.embedding: rows of `weight` at `indices`; a shard of rows leaves zeros elsewhere."""
    return make_rule(
        "v e, *b -> *b e",
        call,
        reduce={"v": outside(call)},
        indexed={"v": Shard("autopar.embedding", {"extent": call.operands[0].shape[0]})},
        linear=MOVED,
        work=0,
    )


def index_select(call: OpCall) -> Rule | None:
    """aten.index_select: the entries of `dim` at the positions in a vector `index`."""
    rank = len(call.operands[0].shape)
    if rank == 0:
        return whole(call, MOVED)
    at = axis(call, rank)
    dims = factors("i", rank)
    index: Dims = (("j",),) if call.operands[1].shape else ()
    result: Dims = (*dims[:at], ("j",) if index else (), *dims[at + 1 :])
    return build_rule(
        call,
        operand_dims(call, {"self": dims, "index": index}),
        [result],
        reduce={f"i{at}": outside(call)},
        indexed={f"i{at}": Shard("autopar.index_select", {"extent": call.operands[0].shape[at]})},
        linear=MOVED,
        work=0,
    )


def select(call: OpCall) -> Rule | None:
    """aten.select.int: entry `index` of `dim`, which one of the shards of `dim` has."""
    shape = call.operands[0].shape
    at = axis(call, len(shape))
    dims = factors("i", len(shape))
    position = index_of(call, shape[at])
    if position is None:
        return moved(call, dims, dims[:at] + dims[at + 1 :], dims[at])
    return build_rule(
        call,
        [dims],
        [dims[:at] + dims[at + 1 :]],
        reduce={f"i{at}": outside(call)},
        indexed={f"i{at}": Shard("autopar.select", {"index": position})},
        linear=MOVED,
        work=0,
    )


def gather(call: OpCall) -> Rule | None:
    """aten.gather: along `dim`, the entries at `index`, whose shape is the result's."""
    shapes = [operand.shape for operand in call.operands]
    if not all(shapes) or len(shapes[0]) != len(shapes[1]):
        return whole(call, MOVED)
    at = axis(call, len(shapes[0]))
    (source, index), fixed = along_index(shapes, at)
    return build_rule(
        call,
        [source, index],
        [index],
        whole=fixed,
        reduce={source[at][0]: outside(call)},
        indexed={source[at][0]: Shard("autopar.gather", {"extent": shapes[0][at]})},
        linear=MOVED,
        work=0,
    )


def take(call: OpCall) -> Rule | None:
    """aten.take: the elements at `index` of all in a row, of which a shard has some rows."""
    shape = call.operands[0].shape
    return make_rule(
        "*v, *j -> *j",
        call,
        whole=[f"v{at}" for at in range(1, len(shape))],
        reduce={"v0": outside(call)},
        indexed={"v0": Shard("autopar.take", {"extent": prod(shape)})} if shape else None,
        linear=MOVED,
        work=0,
    )


def searchsorted(call: OpCall) -> Rule | None:
    """aten.searchsorted: how many of a sorted row come before each value: those of its parts.

    A `sorter` permutes the whole row.
    """
    rows, values = ("*b n", "*b m") if len(call.operands[0].shape) > 1 else ("n", "*b")
    if call.tensor("sorter") is not None:
        text = f"{rows}, {values}, {rows} -> {values}"
        return make_rule(text, call, whole=("n",), work=BISECTION, unscaled=("n",))
    text = f"{rows}, {values} -> {values}"
    return make_rule(text, call, reduce={"n": "sum"}, work=BISECTION, unscaled=("n",))


def searched(text: str) -> RuleFunction:
    """Returns the rule function of a search in a sorted vector, the last operand."""
    return row(text, reduce={"n": "sum"}, work=BISECTION, unscaled=("n",))


BISECTION = 16 * COMPARISON
"""Operations of a binary search, in a sorted row of some ten thousand elements.

The row's own size would change what a part of it takes by a comparison or two."""

RULES: Table = {
    "aten.embedding.default": embedding,
    "aten.index_select.default": index_select,
    "aten.select.int": select,
    "aten.select_copy.int": select,
    "aten.gather.default": gather,
    "aten.take.default": take,
    "aten.searchsorted.Tensor": searchsorted,
    "aten.searchsorted.Scalar": searched("n -> "),
    "aten.bucketize.Tensor": searched("*b, n -> *b"),
    "aten.bucketize.Scalar": searched("n -> "),
}
