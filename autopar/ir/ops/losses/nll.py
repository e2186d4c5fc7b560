"""Negative log likelihood and cross-entropy, over classes that may be split.

The body picks each target's score with a lookup of which every shard does its part, so neither
scores nor their gradients are gathered: what remains is a sum that stays pending down to the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.ir.expr.expression import IntExpr, prod
from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.reduce.softmax import write_log_softmax
from autopar.ir.ops.table import RuleFunction, Table, dense, factors, operand_dims, pending, same
from autopar.ir.program import Arg, DType, Ref
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, as_number, build_rule

NONE, MEAN, SUM = 0, 1, 2
"""Values of `reduction`."""

IGNORED = -100
"""The default of `ignore_index`."""


@dataclass(frozen=True)
class _Classes:
    """The factors of scores [n, c, *d] or [c], of targets [n, *d] or [], and of weights [k].

    `k` is as large as `c` but never split: weights are looked up by any target.
    """

    batch: Dims

    @property
    def dim(self) -> int:
        """The dimension of the classes."""
        return min(1, len(self.batch))

    @property
    def scores(self) -> Dims:
        """Factors of the scores."""
        return (*self.batch[: self.dim], ("c",), *self.batch[self.dim :])

    @property
    def names(self) -> list[str]:
        """Factors of the targets."""
        return [name for (name,) in self.batch]


def _classes(rank: int) -> _Classes:
    return _Classes(factors("b", rank - 1))


def loss_of_targets(name: str) -> RuleFunction:
    """Returns the rule function of a loss of `self` and `target`: classes, or probabilities.

    A second result is the total weight of the targets. The mean divides by it, so a mean over a
    split batch is not a sum of parts, but by the body.

    Args:
        name: `nll` if `self` holds logarithms of probabilities, else `cross_entropy`.
    """

    def rule(call: OpCall) -> Rule | None:
        scores = call.operands[0].shape
        if not scores:
            return None
        classes = _classes(len(scores))
        soft = name == "cross_entropy" and call.operands[1].shape == scores
        reduction = call.integer("reduction", MEAN)
        by_name: dict[str, Dims] = {
            "self": classes.scores,
            "target": classes.scores if soft else classes.batch,
            "weight": (("k",),),
        }
        results: list[Dims] = [classes.batch if reduction == NONE else (), ()]

        def make(split: bool) -> Rule:
            whole = ["k", "c", *(classes.names if reduction == MEAN else ())]
            reduce = {(n, 0): "sum" for n in (*classes.names, "c")}
            total = "sum" if reduction == SUM else SAME
            reduce |= {(n, 1): total for n in classes.names} | {("c", 1): SAME}
            return build_rule(
                call,
                operand_dims(call, by_name),
                results[: len(call.results)],
                whole=("k",) if split else whole,
                reduce=reduce,
                work=1 if name == "nll" else 5,
                # By itself, the op reads of each row the entry of its target alone.
                aside=("k", "c") if name == "nll" and not split else ("k",),
                passed_over=(0,) if name == "nll" and not split else (),
            )

        def write(w: BodyWriter) -> None:
            _write_loss(w, classes, reduction, name, soft)

        # Smoothing divides by the number of classes, which an open size isn't.
        smoothed = call.args.get("label_smoothing", 0.0) != 0.0
        counted = isinstance(scores[classes.dim], int)
        return with_bodies(make, "picked", write) if counted or not smoothed else make(False)

    return rule


def _write_loss(w: BodyWriter, classes: _Classes, reduction: int, name: str, soft: bool) -> None:
    target = w.value(w.op.results[0])
    wide = accumulate_dtype(target.dtype)
    scores = w.required("self")
    if name == "cross_entropy":
        scores = write_log_softmax(w, w.cast(scores, wide), classes.dim)
    if soft:
        loss, weights = _soft_loss(w, classes, w.cast(scores, wide)), ""
    else:
        loss, weights = _loss_of_classes(w, classes, scores, wide)
    total = _total(w, loss, weights, reduction)
    if reduction != NONE:
        loss = _sum(w, loss)
    if reduction == MEAN:
        loss = w.combine("aten.div.Tensor", loss, total)
    w.cast(loss, target.dtype, target.name)
    if len(w.op.results) > 1:
        second = w.value(w.op.results[1])
        w.cast(total, second.dtype, second.name)


def _loss_of_classes(w: BodyWriter, classes: _Classes, scores: str, wide: str) -> tuple[str, str]:
    """Adds the loss and the weight of every target, both 0 where it is ignored."""
    target = w.value(w.required("target"))
    ignored = _ignored(w)
    kept = w.like("aten.masked_fill.Scalar", target.name, mask=Ref(ignored), value=0)
    index = w.reshape(kept, _with_one(target.global_shape, classes.dim))
    args: dict[str, Arg] = {"self": Ref(scores), "dim": classes.dim, "index": Ref(index)}
    # Of halves only what is picked is made wide.
    picked = w.emit("aten.gather.default", args, w.value(index).global_shape, w.value(scores).dtype)
    loss = w.like("aten.neg.default", w.cast(w.reshape(picked, target.global_shape), wide))
    if w.name("weight") is not None:
        weights = _weights_of(w, kept, wide)
        loss = w.combine("aten.mul.Tensor", loss, weights)
    else:
        ones: dict[str, Arg] = {"size": target.global_shape, "fill_value": 1, "dtype": DType(wide)}
        weights = w.emit("aten.full.default", ones, target.global_shape, wide)
    if smoothing := _smoothing(w):
        spread = _spread_loss(w, classes, scores)
        share = smoothing / as_number(w.value(scores).global_shape[classes.dim])
        loss = w.combine(
            "aten.add.Tensor",
            w.like("aten.mul.Scalar", loss, other=1 - smoothing),
            w.like("aten.mul.Scalar", spread, other=share),
        )
    loss, weights = (
        w.like("aten.masked_fill.Scalar", each, mask=Ref(ignored), value=0)
        for each in (loss, weights)
    )
    return loss, weights


def _soft_loss(w: BodyWriter, classes: _Classes, scores: str) -> str:
    """Adds the cross-entropy with a probability per class."""
    value = w.value(scores)
    target = w.cast(w.required("target"), value.dtype)
    if smoothing := _smoothing(w):
        share = smoothing / as_number(value.global_shape[classes.dim])
        target = w.like("aten.mul.Scalar", target, other=1 - smoothing)
        target = w.like("aten.add.Scalar", target, other=share)
    return _spread_loss(w, classes, w.combine("aten.mul.Tensor", scores, target))


def _spread_loss(w: BodyWriter, classes: _Classes, scores: str) -> str:
    """Adds the weighted, negative sum over all classes."""
    value = w.value(scores)
    if w.name("weight") is not None:
        scores = w.combine("aten.mul.Tensor", scores, _weight_row(w, classes, value.dtype))
    total = w.reduce("aten.sum.dim_IntList", scores, (classes.dim,))
    batch = [n for at, n in enumerate(value.global_shape) if at != classes.dim]
    return w.like("aten.neg.default", w.reshape(total, batch))


def _total(w: BodyWriter, loss: str, weights: str, reduction: int) -> str:
    """Adds what the mean divides by: the weight of all targets, or how many soft ones there are."""
    value = w.value(loss)
    if weights and reduction != NONE:
        return _sum(w, weights)
    count = prod(value.global_shape) if reduction == MEAN else 0
    args: dict[str, Arg] = {"size": (), "fill_value": count, "dtype": DType(value.dtype)}
    return w.emit("aten.full.default", args, (), value.dtype)


def _smoothing(w: BodyWriter) -> float:
    found = w.op.arg("label_smoothing", 0.0)
    return float(found) if isinstance(found, (int, float)) else 0.0


def _ignored(w: BodyWriter) -> str:
    """Adds a mask of the targets that don't count."""
    target = w.value(w.required("target"))
    args: dict[str, Arg] = {
        "self": Ref(target.name),
        "other": w.op.arg("ignore_index", IGNORED),
    }
    return w.emit("aten.eq.Scalar", args, target.global_shape, "bool")


def _weights_of(w: BodyWriter, target: str, dtype: str) -> str:
    """Adds the weight of each target's class."""
    weight = w.cast(w.required("weight"), dtype)
    shape = w.value(target).global_shape
    count = prod(shape)
    args: dict[str, Arg] = {
        "self": Ref(weight),
        "dim": 0,
        "index": Ref(w.reshape(target, (count,))),
    }
    return w.reshape(w.emit("aten.index_select.default", args, (count,), dtype), shape)


def _weight_row(w: BodyWriter, classes: _Classes, dtype: str) -> str:
    """Adds the weights as a tensor that broadcasts to the scores."""
    weight = w.cast(w.required("weight"), dtype)
    (count,) = w.value(weight).global_shape
    return w.reshape(weight, [count if n == "c" else 1 for (n,) in classes.scores])


def _sum(w: BodyWriter, x: str) -> str:
    return w.emit("aten.sum.default", {"self": Ref(x)}, (), w.value(x).dtype)


def _with_one(shape: Sequence[IntExpr], at: int) -> tuple[IntExpr, ...]:
    return (*shape[:at], 1, *shape[at:])


def nll_loss_backward(call: OpCall) -> Rule | None:
    """aten.nll_loss_backward and nll_loss2d_backward, whose `total_weight` is a scalar.

    The body compares the targets with the classes of a shard.
    """
    scores = call.operands[1].shape
    if not scores:
        return None
    classes = _classes(len(scores))
    by_name: dict[str, Dims] = {
        "grad_output": classes.batch if call.operands[0].shape else (),
        "self": classes.scores,
        "target": classes.batch,
        "weight": (("k",),),
        "total_weight": (),
    }

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            operand_dims(call, by_name),
            [classes.scores],
            reduce={"k": SAME},
            whole=("k",) if split else ("k", "c"),
            linear=(pending(0),),
            aside=("k",),
            passed_over=call.positions["self"],
        )

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        share = w.like("aten.neg.default", w.required("grad_output"))
        if w.op.arg("reduction") == MEAN:
            share = w.combine("aten.div.Tensor", share, w.required("total_weight"))
        given = w.value(share).global_shape
        share = w.reshape(share, _with_one(given, classes.dim) if given else (1,) * len(scores))
        if w.name("weight") is not None:
            share = _outer(w, _weight_row(w, classes, w.value(share).dtype), share)
        args: dict[str, Arg] = {"condition": Ref(_hot(w, classes)), "self": Ref(share), "other": 0}
        w.emit("aten.where.ScalarOther", args, target.global_shape, target.dtype, target.name)

    return with_bodies(make, "compared", write)


def _hot(w: BodyWriter, classes: _Classes) -> str:
    """Adds, for each class of each target, whether it is the target's."""
    shape = w.value(w.op.results[0]).global_shape
    target = w.value(w.required("target"))
    kept = w.like("aten.masked_fill.Scalar", target.name, mask=Ref(_ignored(w)), value=-1)
    args: dict[str, Arg] = {
        "self": Ref(w.indices(shape, (classes.dim,))),
        "other": Ref(w.reshape(kept, _with_one(target.global_shape, classes.dim))),
    }
    return w.emit("aten.eq.Tensor", args, shape, "bool")


def _outer(w: BodyWriter, x: str, y: str) -> str:
    """Adds the product of tensors that broadcast to one another."""
    pairs = zip(w.value(x).global_shape, w.value(y).global_shape, strict=True)
    args: dict[str, Arg] = {"self": Ref(x), "other": Ref(y)}
    shape = [b if a == 1 else a for a, b in pairs]
    return w.emit("aten.mul.Tensor", args, shape, w.value(y).dtype)


RULES: Table = {
    **same(
        [
            "aten.nll_loss_forward.default",
            "aten.nll_loss2d_forward.default",
            "aten.nll_loss.default",
            "aten.nll_loss2d.default",
            "aten.nll_loss_nd.default",
        ],
        loss_of_targets("nll"),
    ),
    "aten.nll_loss_backward.default": nll_loss_backward,
    "aten.nll_loss2d_backward.default": dense(nll_loss_backward),
    "aten.cross_entropy_loss.default": loss_of_targets("cross_entropy"),
}
