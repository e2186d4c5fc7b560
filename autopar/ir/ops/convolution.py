"""Convolutions and pooling. Spatial dimensions must not be split."""

from __future__ import annotations

import math

from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.layout import trailing
from autopar.ir.ops.table import BILINEAR, RuleFunction, Table, factors, pending, same
from autopar.ir.program import Arg
from autopar.ir.rule import Dims, Linear, OpCall, Rule, Size, Sizes, build_rule

BIASED = (pending(0, 2), pending(1, 2))


def convolution(transposed: bool | None = None) -> RuleFunction:
    """Returns the rule function of a convolution of `input`, `weight` and maybe `bias`.

    Channels are `(g i)` in and `(g o)` out, of `g` groups; `i` is summed. A bias would be added
    once per part of such a sum, so that its body adds it separately.

    Args:
        transposed: Whether it is transposed; None if an argument says so.
    """

    def rule(call: OpCall) -> Rule | None:
        swap = call.flag("transposed") if transposed is None else transposed
        data, weight = call.operands[0].shape, call.operands[1].shape
        if len(data) != len(weight):
            return None
        groups = call.integer("groups", 1)
        spatial = len(data) - 2
        inside, kernel, outside = (factors(name, spatial) for name in ("x", "k", "y"))
        group = ("g",) if groups > 1 else ()
        channels, features = (*group, "i"), (*group, "o")
        weight_dims: Dims = (channels, ("o",)) if swap else (features, ("i",))
        operands: list[Dims] = [(("n",), channels, *inside), (*weight_dims, *kernel)]
        if biased := len(call.operands) == 3:
            operands.append((features,))
        fixed = [name for (name,) in (*inside, *kernel, *outside)]
        # Of the points (input x kernel x output), those are computed that meet.
        points = math.prod(data[2:]) if not swap else math.prod(call.results[0].shape[2:])

        def make(split: bool) -> Rule:
            return build_rule(
                call,
                operands,
                [(("n",), features, *outside)],
                sizes={"g": groups} if group else None,
                reduce={"i": "sum"},
                whole=fixed if split or not biased else [*fixed, "i"],
                linear=BIASED if biased else BILINEAR,
                local={"groups": Size(("g",))} if group else None,
                work=2 / max(1, points),
            )

        return with_bodies(call, make, "product", _add_bias) if biased else make(False)

    return rule


def _add_bias(w: BodyWriter) -> None:
    target = w.value(w.op.results[0])
    shape = target.global_shape
    args: dict[str, Arg] = dict(w.op.args)
    if w.op.kind == "aten.convolution.default":
        args["bias"] = None
    else:
        del args["bias"]
    product = w.emit(w.op.kind, args, shape, target.dtype)
    bias = w.reshape(w.required("bias"), (shape[1], *(1,) * (len(shape) - 2)))
    w.combine("aten.add.Tensor", product, bias, target.name)


def convolution_backward(call: OpCall) -> Rule | None:
    """aten.convolution_backward: gradients of input, weight and bias, those in `output_mask`."""
    data, weight = call.operands[1].shape, call.operands[2].shape
    if call.integer("groups", 1) != 1 or len(data) != len(weight):
        return None
    spatial = len(data) - 2
    inside, kernel, outside = (factors(name, spatial) for name in ("x", "k", "y"))
    weights: Dims = (("i",), ("o",)) if call.flag("transposed") else (("o",), ("i",))
    results: list[Dims] = [(("n",), ("i",), *inside), (*weights, *kernel), (("o",),)]
    mask = call.args.get("output_mask")
    kept = mask if isinstance(mask, tuple) else (True, True, True)
    chosen = [at for at in range(3) if kept[at]]
    if len(call.results) != len(chosen):
        return None
    reduce: dict[tuple[str, int], str] = {}
    for position, at in enumerate(chosen):
        summed = {0: "o", 1: "n", 2: "n"}[at]
        reduce[summed, position] = "sum"
    whole = [name for (name,) in (*inside, *kernel, *outside)]
    if kept[2]:
        # Every part would compute the bias's gradient, and kernels don't without input channels.
        whole.append("i")
    return build_rule(
        call,
        [(("n",), ("o",), *outside), (("n",), ("i",), *inside), (*weights, *kernel)],
        [results[at] for at in chosen],
        reduce=reduce,
        whole=whole,
        linear=(pending(0),),
        local={"bias_sizes": Sizes((("o",),))} if call.args.get("bias_sizes") else None,
        work=4 / max(1, math.prod(data[2:])),
    )


def pooling(spatial: int, *linear: Linear) -> RuleFunction:
    """Returns the rule function of a pooling or resizing over the last `spatial` dimensions."""
    return trailing(spatial, linear, work=0)


SUM, MAX = pending(0), pending(0, monoids=("max",))

RULES: Table = {
    "aten.convolution.default": convolution(),
    **same([f"aten.conv{n}d.default" for n in (1, 2, 3)], convolution(False)),
    **same(
        [
            "aten.conv_transpose1d.default",
            "aten.conv_transpose2d.input",
            "aten.conv_transpose3d.input",
        ],
        convolution(True),
    ),
    "aten.convolution_backward.default": convolution_backward,
}
POOLING: Table = {
    **{f"aten.max_pool{n}d.default": pooling(n, MAX) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices.default": pooling(n) for n in (2, 3)},
    "aten.max_pool1d_with_indices.default": pooling(1),
    **{f"aten.avg_pool{n}d.default": pooling(n, SUM) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": pooling(n, SUM) for n in (2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": pooling(n, SUM) for n in (1, 2, 3)},
    **{f"aten.adaptive_max_pool{n}d.default": pooling(n) for n in (1, 2, 3)},
}
RESIZING: Table = {
    **{
        f"aten.{name}{n}d.{overload}": pooling(n, SUM)
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for n in (1, 2, 3)
        for overload in ("default", "vec")
    },
    **{
        f"aten.{name}.{overload}": pooling(n, SUM)
        for name, n in (
            ("upsample_linear1d", 1),
            ("upsample_bilinear2d", 2),
            ("upsample_bicubic2d", 2),
            ("upsample_trilinear3d", 3),
            ("_upsample_bilinear2d_aa", 2),
            ("_upsample_bicubic2d_aa", 2),
        )
        for overload in ("default", "vec")
    },
}
