"""Distances between rows: norms of differences along their last dimension."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.expr.expression import IntExpr
from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.elementwise.pointwise import broadcast_dims
from autopar.ir.ops.reduce.vector_norm import MONOIDS, order_of, write_norm
from autopar.ir.ops.table import Table, dense, pending, row
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule, make_rule


def _lead(shape: Sequence[IntExpr], batch: Sequence[IntExpr]) -> Dims:
    return broadcast_dims(shape[:-2], batch)


def distances(call: OpCall) -> Rule | None:
    """aten._cdist_forward of rows [*b, p, m] and [*b, r, m]; the body takes all differences."""
    batch, order = call.results[0].shape[:-2], order_of(call, "p")
    left, right = (operand.shape for operand in call.operands)
    operands: list[Dims] = [
        (*_lead(left, batch), ("p",), ("m",)),
        (*_lead(right, batch), ("r",), ("m",)),
    ]
    result: Dims = (*broadcast_dims(batch, batch), ("p",), ("r",))
    monoid = MONOIDS.get(order) if order is not None else None

    def make(split: bool) -> Rule:
        reduce = {"m": monoid or SAME}
        whole = () if split else ("m",)
        return build_rule(call, operands, [result], reduce=reduce, whole=whole, work=3)

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        wide = accumulate_dtype(target.dtype)
        names = (w.cast(w.required(name), wide) for name in ("x1", "x2"))
        rows = w.reshape(next(names), (*left[:-1], 1, left[-1]))
        columns = w.reshape(next(names), (*right[:-2], 1, *right[-2:]))
        args: dict[str, Arg] = {"self": Ref(rows), "other": Ref(columns)}
        difference = w.emit("aten.sub.Tensor", args, (*target.global_shape, left[-1]), wide)
        last = len(target.global_shape)
        found = write_norm(w, difference, (last,), 2 if order is None else order, wide)
        w.reshape(w.cast(found, target.dtype), target.global_shape, target.name)

    return make(True) if monoid else with_bodies(make, "differences", write)


def distances_backward(call: OpCall) -> Rule | None:
    """aten._cdist_backward: the gradient of `x1`, a sum over the rows of `x2`."""
    batch = call.results[0].shape[:-2]
    grad, left, right, found = (operand.shape for operand in call.operands)
    if len(grad) != len(batch) + 2 or max(map(len, (left, right, found))) > len(batch) + 2:
        # The gradient of no distances at all, or by one of them, comes without the batch.
        return None
    operands: list[Dims] = [
        (*_lead(grad, batch), ("p",), ("r",)),
        (*_lead(left, batch), ("p",), ("m",)),
        (*_lead(right, batch), ("r",), ("m",)),
        (*_lead(found, batch), ("p",), ("r",)),
    ]
    result: Dims = (*broadcast_dims(batch, batch), ("p",), ("m",))
    reduce, linear = {"r": "sum"}, (pending(0),)
    return build_rule(call, operands, [result], reduce=reduce, linear=linear, work=4)


def pairs(call: OpCall) -> Rule | None:
    """aten._pdist_forward: distances of all pairs of rows, in one vector."""
    order = order_of(call, "p")
    monoid = MONOIDS.get(order) if order is not None else None
    whole = ("n", "t") if monoid else ("n", "t", "m")
    return make_rule(
        "n m -> t", call, reduce={"m": monoid or SAME}, whole=whole, work=3, aside=("n",)
    )


RULES: Table = {
    "aten._cdist_forward.default": distances,
    "aten._cdist_backward.default": distances_backward,
    "aten._euclidean_dist.default": row("p m, r m -> p r", whole=("m",), work=3),
    "aten._pdist_forward.default": dense(pairs),
    "aten._pdist_backward.default": dense(
        row("t, n m, t -> n m", whole=("t", "n"), linear=(pending(0),), work=3, aside=("n",))
    ),
}
