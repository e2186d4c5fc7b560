"""Batch normalization, with statistics that are given or those of the batch.

With given statistics it is a scale and a shift per channel. Statistics of a split batch need a
reduction, which the bodies write; the fused op can then only be split along the channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.expr.expression import IntExpr, add, prod
from autopar.ir.expr.facts import larger
from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.normalize.normalization import (
    Moments,
    mask_of,
    unmasked,
    write_affine,
    write_gradient,
    write_moments,
    write_sum,
)
from autopar.ir.ops.table import Again, Table, factors, operand_dims, pending, same
from autopar.ir.program import Arg, DType
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule

CHANNEL: Dims = (("c",),)
PARAMETERS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class _Batch:
    """The input of a call: [n, c, *positions].

    Attributes:
        dims: The factors of each dimension.
        shape: Their sizes.
    """

    dims: Dims
    shape: tuple[IntExpr, ...]

    @property
    def inner(self) -> list[str]:
        """The factors along which statistics are taken."""
        return [name for at, (name,) in enumerate(self.dims) if at != 1]

    @property
    def positions(self) -> list[int]:
        """The dimensions along which statistics are taken."""
        return [at for at in range(len(self.shape)) if at != 1]

    @property
    def count(self) -> IntExpr:
        """The number of elements of a channel."""
        return prod(self.shape[at] for at in self.positions)

    def aligned(self, w: BodyWriter, name: str | None) -> str | None:
        """Writes a vector per channel in a shape that broadcasts to the input."""
        lifted = [size if at == 1 else 1 for at, size in enumerate(self.shape)]
        return name and w.reshape(name, lifted)


def _batch(call: OpCall) -> _Batch:
    shape = (call.tensor("input") or call.operands[0]).shape
    return _Batch((("n",), ("c",), *factors("x", len(shape) - 2)), shape)


def _results(call: OpCall, batch: _Batch) -> tuple[list[Dims], list[str]]:
    """Returns the factors of each result, and those of results that stay empty."""
    results, unread = [batch.dims], []
    for at, result in enumerate(call.results[1:], 1):
        per_channel = result.shape == call.results[0].shape[1:2]
        results.append(CHANNEL if per_channel else factors(f"r{at}_", len(result.shape)))
        unread.extend([] if per_channel else [name for (name,) in results[-1]])
    return results, unread


def _operands(call: OpCall, batch: _Batch) -> list[Dims]:
    return operand_dims(call, {"input": batch.dims, **dict.fromkeys(PARAMETERS, CHANNEL)})


def batch_norm(call: OpCall) -> Rule | None:
    """Batch normalization in training or not, as the call says."""
    given = call.tensor("running_mean") is not None
    if given and not call.flag("training"):
        return inference(call)
    # With running statistics, only the functional op returns them; others write them in place.
    return training(call) if not given or "functional" in call.kind else None


def inference(call: OpCall) -> Rule | None:
    """Batch normalization with statistics that are given: a scale and shift per channel."""
    batch = _batch(call)
    results, unread = _results(call, batch)
    reduce = {name: SAME for (name,) in batch.dims}
    operands = _operands(call, batch)
    return build_rule(call, operands, results, reduce=reduce, whole=unread, work=4)


def training(call: OpCall) -> Rule | None:
    """Batch normalization with statistics of the batch.

    Results are the output, mean and reciprocal deviation, perhaps something reserved for the
    gradient, and the running statistics if they are given.
    """
    batch = _batch(call)
    results, unread = _results(call, batch)
    operands = _operands(call, batch)

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            operands,
            results,
            reduce={name: SAME for (name,) in batch.dims},
            whole=unread if split else [*unread, *batch.inner],
            work=8,
        )

    def write(w: BodyWriter) -> None:
        _write_training(w, batch)

    return with_bodies(make, "moments", write)


def _write_training(w: BodyWriter, batch: _Batch) -> None:
    target, wide = w.value(w.op.results[0]), accumulate_dtype(w.value(w.op.results[0]).dtype)
    x = w.cast(w.required("input"), wide)
    moments = write_moments(w, x, batch.positions, w.op.arg("eps", 1e-5))
    found = w.combine("aten.mul.Tensor", moments.centered, moments.scale)
    weight, bias = (batch.aligned(w, w.name(name)) for name in ("weight", "bias"))
    w.cast(write_affine(w, found, weight, bias), target.dtype, target.name)
    statistics = [moments.mean, moments.scale]
    if w.name("running_mean") is not None:
        statistics += _running(w, batch, moments)
    remaining = list(w.op.results[1:])
    for value in statistics if remaining else ():
        if w.value(remaining[0]).global_shape != batch.shape[1:2]:
            reserved = w.value(remaining.pop(0))
            size, dtype = reserved.global_shape, reserved.dtype
            args: dict[str, Arg] = {"size": size, "dtype": DType(dtype)}
            w.emit("aten.zeros.default", args, size, dtype, reserved.name)
        result = w.value(remaining.pop(0))
        w.reshape(w.cast(value, result.dtype), result.global_shape, result.name)


def _running(w: BodyWriter, batch: _Batch, moments: Moments) -> list[str]:
    """Writes the new running mean and variance; the variance's is unbiased."""
    momentum = w.op.arg("momentum", 0.1)
    rate = float(momentum) if isinstance(momentum, (int, float)) else 0.0
    all_but_one = larger(1, add(batch.count, -1))
    unbiased = w.like("aten.mul.Scalar", moments.variance, other=batch.count)
    unbiased = w.like("aten.div.Scalar", unbiased, other=all_but_one)
    found = []
    for value, name in ((moments.mean, "running_mean"), (unbiased, "running_var")):
        old = w.reshape(w.required(name), w.value(value).global_shape)
        old = w.cast(old, w.value(value).dtype)
        kept = w.like("aten.mul.Scalar", old, other=1 - rate)
        moved = w.like("aten.mul.Scalar", value, other=rate)
        found.append(w.combine("aten.add.Tensor", kept, moved))
    return found


def batch_norm_backward(call: OpCall) -> Rule | None:
    """The gradients of input, weight and bias; the batch is summed in the last two.

    If statistics are those of the batch, the fused op can only be split along the channels.
    """
    batch = _batch(call)
    names = ("weight", "running_mean", "running_var", "save_mean", "save_invstd", "save_var")
    # Statistics that were given have not been saved: their place is taken by a tensor of no size.
    unread = ["r", "s"]
    saved = {
        name: (("s",),) if tensor.shape == (0,) else CHANNEL
        for name in names
        if (tensor := call.tensor(name)) is not None
    }
    by_name = {"grad_out": batch.dims, "input": batch.dims, "reserve": (("r",),), **saved}
    operands = operand_dims(call, by_name)
    results = unmasked(call, (batch.dims, CHANNEL, CHANNEL))
    if results is None:
        return None
    learned = call.flag("train") or call.flag("update")

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            operands,
            results,
            reduce=dict.fromkeys(batch.inner, "sum"),
            whole=unread if split else [*unread, *batch.inner],
            linear=(pending(0),),
            work=10,
        )

    def write(w: BodyWriter) -> None:
        _write_backward(w, batch, mask_of(call))

    return with_bodies(make, "moments", write) if learned else make(True)


def _write_backward(w: BodyWriter, batch: _Batch, mask: tuple[bool, ...]) -> None:
    wide = accumulate_dtype(w.value(w.required("grad_out")).dtype)
    grad, x = (w.cast(w.required(name), wide) for name in ("grad_out", "input"))
    deviation = "save_invstd" if w.name("save_invstd") is not None else "save_var"
    mean, scale = (
        w.cast(batch.aligned(w, w.required(name)) or "", wide) for name in ("save_mean", deviation)
    )
    normalized = w.combine("aten.mul.Tensor", w.combine("aten.sub.Tensor", x, mean), scale)
    remaining = list(w.op.results)
    if mask[0]:
        weighted = write_affine(w, grad, batch.aligned(w, w.name("weight")), None)
        target = w.value(remaining.pop(0))
        found = write_gradient(w, weighted, normalized, scale, batch.positions)
        w.cast(found, target.dtype, target.name)
    if mask[1]:
        product = w.combine("aten.mul.Tensor", grad, normalized)
        write_sum(w, product, batch.positions, remaining.pop(0))
    if mask[2]:
        write_sum(w, grad, batch.positions, remaining.pop(0))


RULES: Table = {
    **same(
        [
            "aten.native_batch_norm.default",
            "aten._native_batch_norm_legit_functional.default",
            "aten.batch_norm.default",
        ],
        batch_norm,
    ),
    **same(
        ["aten._native_batch_norm_legit_no_training.default", "aten._batch_norm_no_update.default"],
        inference,
    ),
    **same(
        [
            "aten._native_batch_norm_legit.no_stats",
            "aten._batch_norm_with_update_functional.default",
        ],
        training,
    ),
    **same(
        ["aten.native_batch_norm_backward.default", "aten.batch_norm_backward.default"],
        batch_norm_backward,
    ),
}

AGAIN: Mapping[str, Again] = {
    "aten._native_batch_norm_legit_functional.default": Again(
        "aten._native_batch_norm_legit.no_stats", ("running_mean", "running_var"), 3
    ),
}
"""What computes output and statistics of a batch again: running statistics are renewed once."""
