"""Writes at positions that an index operand or a mask holds.

A shard of what is written to skips what belongs elsewhere. The writes themselves may be split if
they are reduced where they meet, and what was there before then counts once: it is pending, unless
the reduction forgives repetition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autopar.ir.expr.expression import prod
from autopar.ir.ops.table import (
    IDEMPOTENT,
    RuleFunction,
    Table,
    along_index,
    axis,
    chosen,
    factors,
    operand_dims,
    pending,
    whole,
)
from autopar.ir.rules.local_arg import Size
from autopar.ir.rules.rule import Dims, Linear, OpCall, Rule, Shard, build_rule, make_rule

REPLACED = chosen(0, 2)
"""What is written replaces what is written to."""

ADDED = (pending(0, 2),)
"""What is written is added to what is written to."""


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


REDUCTIONS = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}
"""The monoid of each argument `reduce` that has one."""


def commuting(monoid: str) -> tuple[Linear, ...]:
    """Returns how a reduction into operand 0 by operand 2 commutes with pending reductions."""
    if not monoid:
        return ()
    pairs = ((0, 2), (0,), (2,)) if monoid in IDEMPOTENT else ((0, 2),)
    return tuple(pending(*at, monoids=(monoid,)) for at in pairs)


def _monoid(call: OpCall) -> str:
    """Returns the monoid of `reduce` if what was there before takes part; else nothing."""
    return (
        REDUCTIONS.get(str(call.args.get("reduce")), "") if call.flag("include_self", True) else ""
    )


class Splitting(NamedTuple):
    """What says in a rule how the factors of writes may be split."""

    whole: list[str]
    reduce: dict[str, str]
    once: dict[str, frozenset[int]]


def splitting(call: OpCall, names: Iterable[str], monoid: str) -> Splitting:
    """Returns how writes may be split that reduce by a monoid into operand 0, if any."""
    if not monoid or call.operands[0].dtype == "bool":
        return Splitting(list(names), {}, {})
    reduce = dict.fromkeys(names, monoid)
    once = {} if monoid in IDEMPOTENT else dict.fromkeys(reduce, frozenset((0,)))
    return Splitting([], reduce, once)


def scatter(own: str, linear: Sequence[Linear] = (), monoid: str = "") -> RuleFunction:
    """Returns the rule function of a write along `dim` at `index`.

    Args:
        own: The op that computes a shard of `dim`.
        linear: How it commutes with pending reductions.
        monoid: What is done where writes meet; nothing if the last one stays.
    """

    def rule(call: OpCall) -> Rule | None:
        return _scatter(call, own, linear, monoid)

    return rule


def _scatter(call: OpCall, own: str, linear: Sequence[Linear], monoid: str = "") -> Rule | None:
    shapes = [operand.shape for operand in call.operands]
    if not all(shapes) or len({len(shape) for shape in shapes}) > 1:
        return whole(call, linear)
    at = axis(call, len(shapes[0]))
    operands, fixed = along_index(shapes, at)
    if len(shapes) > 2 and shapes[1][at] == shapes[2][at]:
        operands[2] = (*operands[2][:at], operands[1][at], *operands[2][at + 1 :])
    written = {operand[at][0] for operand in operands[1:]}
    found = splitting(call, sorted(written), monoid if len(written) == 1 else "")
    return build_rule(
        call,
        operands,
        [operands[0]],
        whole=[*fixed, *found.whole],
        reduce=found.reduce,
        once=found.once,
        indexed={operands[0][at][0]: Shard(own, {"extent": shapes[0][at], "wraps": False})},
        linear=linear,
        work=0,
    )


def scatter_value(call: OpCall) -> Rule | None:
    """aten.scatter.value: a constant replaces elements."""
    return _scatter(call, "autopar.scatter_value", _constant(call))


def scatter_reduce(call: OpCall) -> Rule | None:
    """aten.scatter_reduce.two."""
    monoid = _monoid(call)
    linear = ADDED if call.args.get("reduce") == "sum" else commuting(monoid)
    return _scatter(call, "autopar.scatter_reduce", linear, monoid)


def scatter_with(own: str) -> RuleFunction:
    """Returns the rule function of aten.scatter.reduce and value_reduce: sums and products."""

    def rule(call: OpCall) -> Rule | None:
        monoid = {"add": "sum", "multiply": "prod"}[str(call.args.get("reduce"))]
        return _scatter(call, own, commuting(monoid) if len(call.operands) > 2 else (), monoid)

    return rule


def along_vector(own: str, linear: Sequence[Linear] = (), monoid: str = "") -> RuleFunction:
    """Returns the rule function of a write along `dim` at a vector of positions.

    Args:
        own: The op that computes a shard of `dim`.
        linear: How it commutes with pending reductions.
        monoid: What is done where writes meet; nothing if the last one stays.
    """

    def rule(call: OpCall) -> Rule | None:
        return _along_vector(call, own, linear, monoid)

    return rule


def _along_vector(
    call: OpCall,
    own: str,
    linear: Sequence[Linear],
    monoid: str = "",
    wraps: bool = False,
) -> Rule | None:
    rank = len(call.operands[0].shape)
    if rank == 0:
        return whole(call, linear)
    at = axis(call, rank)
    dims = factors("i", rank)
    index: Dims = (("j",),) if call.operands[1].shape else ()
    source: Dims = (*dims[:at], ("j",) if index else (), *dims[at + 1 :])
    found = splitting(call, ("j",), monoid)
    return build_rule(
        call,
        operand_dims(call, {"self": dims, "index": index, "source": source, "value": ()}),
        [dims],
        whole=found.whole,
        reduce=found.reduce,
        once=found.once,
        indexed={f"i{at}": Shard(own, {"extent": call.operands[0].shape[at], "wraps": wraps})},
        linear=linear,
        work=0,
    )


def index_fill(call: OpCall) -> Rule | None:
    """aten.index_fill: a constant or a scalar replaces elements; an index may be negative."""
    kind, linear = "autopar.index_fill", _constant(call)
    if call.tensor("value") is not None:
        kind, linear = "autopar.index_fill_tensor", REPLACED
    return _along_vector(call, kind, linear, wraps=True)


def index_reduce(call: OpCall) -> Rule | None:
    """aten.index_reduce."""
    monoid = _monoid(call)
    return _along_vector(call, "autopar.index_reduce", commuting(monoid), monoid)


def put(call: OpCall) -> Rule | None:
    """aten.put: elements at `index` of all in a row, of which a shard has some rows."""
    shape, index, source = (operand.shape for operand in call.operands)
    added = call.flag("accumulate")
    linear = ADDED if added else REPLACED
    if not shape or index != source:
        return whole(call, linear)
    found = splitting(call, (f"j{at}" for at in range(len(index))), "sum" if added else "")
    return make_rule(
        "*v, *j, *j -> *v",
        call,
        whole=[*found.whole, *(f"v{at}" for at in range(1, len(shape)))],
        reduce=found.reduce,
        once=found.once,
        indexed={"v0": Shard("autopar.put", {"extent": prod(shape)})},
        linear=linear,
        work=0,
    )


def masked_scatter(call: OpCall) -> Rule | None:
    """aten.masked_scatter: where an element comes from depends on the whole mask."""
    return whole(call, REPLACED)


RULES: Table = {
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.scatter.src": scatter("autopar.scatter", REPLACED),
    "aten.scatter.value": scatter_value,
    "aten.scatter.reduce": scatter_with("autopar.scatter_with"),
    "aten.scatter.value_reduce": scatter_with("autopar.scatter_value_with"),
    "aten.scatter_add.default": scatter("autopar.scatter_add", ADDED, "sum"),
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_add.default": along_vector("autopar.index_add", ADDED, "sum"),
    "aten.index_copy.default": along_vector("autopar.index_copy", REPLACED),
    "aten.index_fill.int_Scalar": index_fill,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.index_reduce.default": index_reduce,
    "aten.put.default": put,
    "aten.masked_scatter.default": masked_scatter,
}
