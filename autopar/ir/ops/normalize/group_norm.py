"""Group normalization: groups of channels are normalized together, over all positions.

The fused op is split along the batch and the groups. The bodies see an image as
[n, g, c, positions] and may be split along all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autopar.ir.expr.expression import IntExpr, prod
from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.normalize.normalization import (
    mask_of,
    unmasked,
    write_affine,
    write_gradient,
    write_moments,
    write_sum,
)
from autopar.ir.ops.shape.sizes import integer
from autopar.ir.ops.table import Table, dense, factors, operand_dims, pending
from autopar.ir.rules.local_arg import Size
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule

CHANNELS: Dims = (("g", "c"),)
STATISTICS: Dims = (("n",), ("g",))
LOCAL = {"N": Size(("n",)), "C": Size(("g", "c")), "group": Size(("g",))}


@dataclass(frozen=True, slots=True)
class _Image:
    """The input of a call as [n, g, c, positions].

    Attributes:
        batch, groups: Sizes.
        dims: The factors of each dimension of the input.
        shape: The input's shape.
    """

    batch: IntExpr
    groups: int
    dims: Dims
    shape: tuple[IntExpr, ...]

    @property
    def inner(self) -> list[str]:
        """The factors along which statistics are taken."""
        return ["c", *(name for (name,) in self.dims[2:])]

    @property
    def grouped(self) -> tuple[IntExpr, IntExpr, IntExpr, IntExpr]:
        """The shape with channels taken apart and positions together."""
        channels, positions = self.shape[1] // self.groups, prod(self.shape[2:])
        return self.batch, self.groups, channels, positions

    @property
    def count(self) -> IntExpr:
        """The number of elements of a group."""
        return prod(self.grouped[2:])

    def rule(
        self,
        call: OpCall,
        operands: Sequence[Dims],
        results: Sequence[Dims],
        split: bool,
        **options: Any,
    ) -> Rule:
        """Returns the rule of a normalization, or of its gradient.

        Args:
            call, operands, results: As `build_rule` takes them.
            split: Whether what statistics are taken along may be split.
            options: More of its arguments.
        """
        sizes, whole = {"g": self.groups}, () if split else self.inner
        return build_rule(call, operands, results, sizes=sizes, whole=whole, local=LOCAL, **options)


def _image(call: OpCall, operand: int) -> _Image | None:
    shape, groups = call.operands[operand].shape, call.integer("group", 1)
    if len(shape) < 2 or shape[:2] != (integer(call, "N"), integer(call, "C")):
        return None
    return _Image(shape[0], groups, (("n",), *CHANNELS, *factors("x", len(shape) - 2)), shape)


def _parameter(w: BodyWriter, name: str | None, image: _Image) -> str | None:
    """Writes a weight or bias per channel in a shape that broadcasts to the image."""
    return name and w.reshape(name, (1, *image.grouped[1:3], 1))


def group_norm(call: OpCall) -> Rule | None:
    """aten.native_group_norm: results are the output, the mean and the reciprocal deviation."""
    image = _image(call, 0)
    if image is None:
        return None
    by_name = {"input": image.dims, "weight": CHANNELS, "bias": CHANNELS}
    operands = operand_dims(call, by_name)
    results = [image.dims, STATISTICS, STATISTICS][: len(call.results)]

    def make(split: bool) -> Rule:
        reduce = {(name, at): SAME for name in image.inner for at in (1, 2)}
        return image.rule(call, operands, results, split, reduce=reduce, work=8)

    def write(w: BodyWriter) -> None:
        targets = [w.value(name) for name in w.op.results]
        x = w.cast(w.required("input"), accumulate_dtype(targets[0].dtype))
        moments = write_moments(w, w.reshape(x, image.grouped), (2, 3), w.op.arg("eps", 1e-5))
        found = w.combine("aten.mul.Tensor", moments.centered, moments.scale)
        weight, bias = (_parameter(w, w.name(name), image) for name in ("weight", "bias"))
        found = write_affine(w, found, weight, bias)
        for value, target in zip((found, moments.mean, moments.scale), targets, strict=False):
            w.reshape(w.cast(value, target.dtype), target.global_shape, target.name)

    return with_bodies(make, "moments", write)


def group_norm_backward(call: OpCall) -> Rule | None:
    """aten.native_group_norm_backward: the batch is summed in the gradients of weight and bias."""
    image = _image(call, 1)
    results = unmasked(call, (image.dims, CHANNELS, CHANNELS)) if image else None
    if image is None or results is None:
        return None
    by_name = {"grad_out": image.dims, "input": image.dims, "weight": CHANNELS}
    operands = operand_dims(call, {**by_name, "mean": STATISTICS, "rstd": STATISTICS})
    summed = ["n", *(name for (name,) in image.dims[2:])]

    def make(split: bool) -> Rule:
        reduce = dict.fromkeys(summed, "sum")
        linear = (pending(0),)
        return image.rule(call, operands, results, split, reduce=reduce, linear=linear, work=10)

    def write(w: BodyWriter) -> None:
        _write_backward(w, image, mask_of(call))

    return with_bodies(make, "moments", write)


def _write_backward(w: BodyWriter, image: _Image, mask: tuple[bool, ...]) -> None:
    wide = accumulate_dtype(w.value(w.required("grad_out")).dtype)
    statistics = (image.batch, image.groups, 1, 1)
    grad, x = (w.reshape(w.cast(w.required(n), wide), image.grouped) for n in ("grad_out", "input"))
    mean, scale = (w.reshape(w.cast(w.required(n), wide), statistics) for n in ("mean", "rstd"))
    normalized = w.combine("aten.mul.Tensor", w.combine("aten.sub.Tensor", x, mean), scale)
    remaining = list(w.op.results)
    if mask[0]:
        weighted = write_affine(w, grad, _parameter(w, w.name("weight"), image), None)
        found = write_gradient(w, weighted, normalized, scale, (2, 3))
        target = w.value(remaining.pop(0))
        w.reshape(w.cast(found, target.dtype), target.global_shape, target.name)
    if mask[1]:
        write_sum(w, w.combine("aten.mul.Tensor", grad, normalized), (0, 3), remaining.pop(0))
    if mask[2]:
        write_sum(w, grad, (0, 3), remaining.pop(0))


RULES: Table = {
    "aten.native_group_norm.default": dense(group_norm),
    "aten.native_group_norm_backward.default": dense(group_norm_backward),
}
