"""Convolutions and pooling. Spatial dimensions must not be split, as windows overlap.

Except where a convolution goes patch by patch: a kernel of size 1, or as large as its stride.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.layout import trailing
from autopar.ir.ops.table import BILINEAR, RuleFunction, Table, factors, pending, same
from autopar.ir.program import Arg
from autopar.ir.rule import Dims, Linear, OpCall, Rule, Size, Sizes, build_rule

BIASED = (pending(0, 2), pending(1, 2))


@dataclass
class Space:
    """The factors of the spatial dimensions.

    Attributes:
        inside, kernel, outside: Those of input, weight and output.
        whole: Those that must not be split.
        sizes: Sizes that don't follow from the shapes.
        excess: Of the points (input x kernel x output), one in so many is computed.
    """

    inside: list[tuple[str, ...]] = field(default_factory=list)
    kernel: list[tuple[str, ...]] = field(default_factory=list)
    outside: list[tuple[str, ...]] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    excess: int = 1


def spatial(call: OpCall, transposed: bool) -> Space:
    """Returns the spatial factors of a convolution.

    A dimension that is convolved patch by patch, with a kernel as large as its stride, is `(y k)`
    on the side of the patches and `y` on the other; any other is `x`, `k` and `y`.
    """
    ends = [call.operands[0].shape[2:], call.results[0].shape[2:]]
    many, few = reversed(ends) if transposed else ends
    found = Space()
    for at, size in enumerate(call.operands[1].shape[2:]):
        patches = _by_patches(call, at, size) and many[at] == few[at] * size
        kernel = () if size == 1 else (f"k{at}",)
        fine = (f"y{at}", *kernel) if patches else (f"x{at}",)
        coarse = (f"y{at}",)
        found.kernel.append(kernel)
        found.inside.append(coarse if transposed else fine)
        found.outside.append(fine if transposed else coarse)
        found.whole.extend(kernel if patches else (*fine, *kernel, *coarse))
        found.sizes.update(dict.fromkeys(kernel, size))
        found.excess *= 1 if patches else many[at]
    return found


def _by_patches(call: OpCall, at: int, kernel: int) -> bool:
    def entry(name: str, default: int) -> object:
        given = call.args.get(name)
        items = given if isinstance(given, tuple) else (given,)
        found = items[at if len(items) > 1 else 0] if items else None
        return default if found is None else found

    tight = entry("padding", 0) == 0 and entry("output_padding", 0) == 0
    return tight and entry("stride", 1) == kernel and (kernel == 1 or entry("dilation", 1) == 1)


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
        space = spatial(call, swap)
        group = ("g",) if groups > 1 else ()
        channels, features = (*group, "i"), (*group, "o")
        weight_dims: Dims = (channels, ("o",)) if swap else (features, ("i",))
        operands: list[Dims] = [(("n",), channels, *space.inside), (*weight_dims, *space.kernel)]
        if biased := len(call.operands) == 3:
            operands.append((features,))

        def make(split: bool) -> Rule:
            return build_rule(
                call,
                operands,
                [(("n",), features, *space.outside)],
                sizes={**space.sizes, "g": groups} if group else space.sizes,
                reduce={"i": "sum"},
                whole=space.whole if split or not biased else [*space.whole, "i"],
                linear=BIASED if biased else BILINEAR,
                local={"groups": Size(("g",))} if group else None,
                work=2 / max(1, space.excess),
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
    inside, kernel, outside = (factors(name, len(data) - 2) for name in ("x", "k", "y"))
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
    **same(
        [f"aten.conv{n}d.{overload}" for n in (1, 2, 3) for overload in ("default", "padding")],
        convolution(False),
    ),
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
