"""Writes at positions that an index operand or a mask holds.

A shard of what is written to skips what belongs elsewhere. The writes themselves can't be split
where their order or their number in one place matters, unless the reduction forgives repetition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.ir.ops.table import (
    IDEMPOTENT,
    RuleFunction,
    Table,
    along_index,
    axis,
    factors,
    operand_dims,
    pending,
    whole,
)
from autopar.ir.rule import (
    ALL_MONOIDS,
    Dims,
    Linear,
    OpCall,
    Rule,
    Shard,
    Size,
    build_rule,
    make_rule,
)

MOVED_TOGETHER = (pending(0, 2, monoids=ALL_MONOIDS),)
"""What is written to and what is written may be pending together."""

ADDED = (pending(0, 2),)
"""The same, but for sums only."""

EXTREMA = {"amax": "max", "amin": "min"}


def embedding_backward(call: OpCall) -> Rule | None:
    """aten.embedding_dense_backward: adds rows of the gradient at `indices`."""
    return make_rule(
        "*b e, *b -> v e",
        call,
        reduce=dict.fromkeys((f"b{at}" for at in range(len(call.operands[1].shape))), "sum"),
        indexed={"v": "autopar.embedding_dense_backward"},
        local={"num_weights": Size(("v",))},
        linear=(pending(0),),
        # Rows are counted over the whole batch.
        whole=("*b", "v") if call.flag("scale_grad_by_freq") else (),
        work=0,
    )


def _constant(call: OpCall) -> tuple[Linear, ...]:
    """A constant that replaces elements survives an idempotent reduction; zero, a sum too."""
    monoids = IDEMPOTENT | {"sum"} if call.args.get("value") == 0 else IDEMPOTENT
    return (pending(0, monoids=monoids),)


def _repeated(monoid: str) -> tuple[Linear, ...]:
    """An idempotent reduction of operands 0 and 2: either or both may be pending."""
    return tuple(pending(*at, monoids=(monoid,)) for at in ((0, 2), (0,), (2,)))


def scatter(own: str, linear: Sequence[Linear] = ()) -> RuleFunction:
    """Returns the rule function of a write along `dim` at `index`.

    Args:
        own: The op that computes a shard of `dim`.
        linear: How it commutes with pending reductions.
    """

    def rule(call: OpCall) -> Rule | None:
        return _scatter(call, own, linear)

    return rule


def _scatter(call: OpCall, own: str, linear: Sequence[Linear], monoid: str = "") -> Rule | None:
    """Returns the rule of a write; with a monoid, its repetition on each part does no harm."""
    shapes = [operand.shape for operand in call.operands]
    if not all(shapes) or len({len(shape) for shape in shapes}) > 1:
        return whole(call, linear)
    at = axis(call, len(shapes[0]))
    operands, fixed = along_index(shapes, at)
    if len(shapes) > 2 and shapes[1][at] == shapes[2][at]:
        operands[2] = (*operands[2][:at], operands[1][at], *operands[2][at + 1 :])
    written = {operand[at][0] for operand in operands[1:]}
    repeats = bool(monoid) and len(written) == 1
    return build_rule(
        call,
        operands,
        [operands[0]],
        whole=fixed if repeats else [*fixed, *written],
        reduce=dict.fromkeys(written, monoid) if repeats else None,
        indexed={operands[0][at][0]: own},
        linear=linear,
        work=0,
    )


def scatter_value(call: OpCall) -> Rule | None:
    """aten.scatter.value: a constant replaces elements."""
    return _scatter(call, "autopar.scatter_value", _constant(call))


def scatter_reduce(call: OpCall) -> Rule | None:
    """aten.scatter_reduce.two, whose largest and least elements may be found part by part."""
    reduce = call.args.get("reduce")
    own, included = "autopar.scatter_reduce", call.flag("include_self", True)
    if reduce in EXTREMA and included:
        monoid = EXTREMA[str(reduce)]
        return _scatter(call, own, _repeated(monoid), monoid)
    return _scatter(call, own, ADDED if reduce == "sum" else ())


def scatter_with(own: str) -> RuleFunction:
    """Returns the rule function of aten.scatter.reduce and value_reduce: sums and products."""

    def rule(call: OpCall) -> Rule | None:
        adds = call.args.get("reduce") == "add" and len(call.operands) > 2
        return _scatter(call, own, ADDED if adds else ())

    return rule


def along_vector(own: str, linear: Sequence[Linear] = ()) -> RuleFunction:
    """Returns the rule function of a write along `dim` at a vector of positions.

    Args:
        own: The op that computes a shard of `dim`.
        linear: How it commutes with pending reductions.
    """

    def rule(call: OpCall) -> Rule | None:
        return _along_vector(call, Shard(own), linear)

    return rule


def _along_vector(
    call: OpCall, own: Shard, linear: Sequence[Linear], monoid: str = ""
) -> Rule | None:
    rank = len(call.operands[0].shape)
    if rank == 0:
        return whole(call, linear)
    at = axis(call, rank)
    dims = factors("i", rank)
    index: Dims = (("j",),) if call.operands[1].shape else ()
    source: Dims = (*dims[:at], ("j",) if index else (), *dims[at + 1 :])
    return build_rule(
        call,
        operand_dims(call, {"self": dims, "index": index, "source": source, "value": ()}),
        [dims],
        whole=() if monoid else ("j",),
        reduce={"j": monoid} if monoid else None,
        indexed={f"i{at}": own},
        linear=linear,
        work=0,
    )


def index_fill(call: OpCall) -> Rule | None:
    """aten.index_fill: a constant or a scalar replaces elements; an index may be negative."""
    rank = len(call.operands[0].shape)
    extent = call.operands[0].shape[axis(call, rank)] if rank else 1
    if call.tensor("value") is None:
        shard = Shard("autopar.index_fill", {"extent": extent})
        return _along_vector(call, shard, _constant(call))
    return _along_vector(
        call, Shard("autopar.index_fill_tensor", {"extent": extent}), MOVED_TOGETHER
    )


def index_reduce(call: OpCall) -> Rule | None:
    """aten.index_reduce, whose largest and least elements may be found part by part."""
    own, reduce = Shard("autopar.index_reduce"), call.args.get("reduce")
    if reduce in EXTREMA and call.flag("include_self", True):
        monoid = EXTREMA[str(reduce)]
        return _along_vector(call, own, _repeated(monoid), monoid)
    return _along_vector(call, own, ())


def put(call: OpCall) -> Rule | None:
    """aten.put: elements at `index` of all in a row, of which a shard has some rows."""
    shape, index, source = (operand.shape for operand in call.operands)
    linear = ADDED if call.flag("accumulate") else MOVED_TOGETHER
    if not shape or index != source:
        return whole(call, linear)
    return make_rule(
        "*v, *j, *j -> *v",
        call,
        whole=["*j", *(f"v{at}" for at in range(1, len(shape)))],
        indexed={"v0": Shard("autopar.put", {"extent": math.prod(shape)})},
        linear=linear,
        work=0,
    )


def masked_scatter(call: OpCall) -> Rule | None:
    """aten.masked_scatter: where an element comes from depends on the whole mask."""
    return whole(call, MOVED_TOGETHER)


RULES: Table = {
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.scatter.src": scatter("autopar.scatter", MOVED_TOGETHER),
    "aten.scatter.value": scatter_value,
    "aten.scatter.reduce": scatter_with("autopar.scatter_with"),
    "aten.scatter.value_reduce": scatter_with("autopar.scatter_value_with"),
    "aten.scatter_add.default": scatter("autopar.scatter_add", ADDED),
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_add.default": along_vector("autopar.index_add", ADDED),
    "aten.index_copy.default": along_vector("autopar.index_copy", MOVED_TOGETHER),
    "aten.index_fill.int_Scalar": index_fill,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.index_reduce.default": index_reduce,
    "aten.put.default": put,
    "aten.masked_scatter.default": masked_scatter,
}
