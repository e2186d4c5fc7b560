"""Ops that combine whole images, rows or signals, independently of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.ir.expr.expression import IntExpr, exact_quotient, planned
from autopar.ir.expr.facts import divides
from autopar.ir.ops.elementwise.pointwise import broadcast_dims
from autopar.ir.ops.reduce.reduction import along
from autopar.ir.ops.shape.sizes import integers, open_size
from autopar.ir.ops.table import (
    COMPARISON,
    FIRST,
    MOVED,
    TAP,
    RuleFunction,
    Table,
    axes,
    axis,
    dense,
    factors,
    pending,
    per_dim,
    row,
    same,
)
from autopar.ir.rules.local_arg import Size, Sizes
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule, make_rule


def images_backward(spatial: int) -> RuleFunction:
    """Returns the rule function of the gradient of a pooling of the last dimensions.

    All operands and the result have the leading dimensions in common.
    """

    def rule(call: OpCall) -> Rule | None:
        lead = factors("i", len(call.results[0].shape) - spatial)
        whole: list[str] = []
        tensors: list[Dims] = []
        for at, tensor in enumerate((*call.operands, *call.results)):
            own = factors(f"s{at}_", len(tensor.shape) - len(lead))
            whole.extend(name for (name,) in own)
            tensors.append((*lead, *own))
        return build_rule(
            call,
            tensors[:-1],
            tensors[-1:],
            whole=whole,
            linear=(pending(0),),
            work=0,
        )

    return rule


def col2im(call: OpCall) -> Rule | None:
    """aten.col2im, the transpose of aten.im2col."""
    kernel = math.prod(call.integers("kernel_size"))
    return make_rule(
        "*n (c k) l -> *n c h w",
        call,
        sizes={"k": kernel},
        whole=("h", "w", "k", "l"),
        linear=FIRST,
        work=0,
    )


def channel_shuffle(call: OpCall) -> Rule | None:
    """aten.channel_shuffle: channels `(g c)` become `(c g)`."""
    return make_rule(
        "n (g c) *x -> n (c g) *x",
        call,
        sizes={"g": call.integer("groups", 1)},
        local={"groups": Size(("g",))},
        linear=MOVED,
        work=0,
    )


def _tiled(call: OpCall, sizes: Sequence[IntExpr]) -> tuple[bool, ...]:
    """Returns along which dimensions windows are side by side and cover the image exactly."""
    kernels = per_dim(call, "kernel_size", len(sizes), 1)
    strides = per_dim(call, "stride", len(sizes), 0)
    padding = per_dim(call, "padding", len(sizes), 0)
    each = zip(sizes, kernels, strides, padding, strict=True)
    return tuple(
        stride in (0, kernel) and not pad and divides(kernel, size)
        for size, kernel, stride, pad in each
    )


def fractional_pool(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.fractional_max_pool2d or 3d.

    Each plane has random numbers of its own, which say where its windows are.
    """

    def rule(call: OpCall) -> Rule | None:
        lead = factors("i", len(call.operands[0].shape) - spatial)
        numbers: Dims = (*((),) * (2 - len(lead)), *lead, ("r",))
        pooled = (*lead, *factors("y", spatial))
        inside = factors("x", spatial)
        whole = ["r", *(name for (name,) in (*inside, *pooled[-spatial:]))]
        return build_rule(call, [(*lead, *inside), numbers], [pooled, pooled], whole=whole, work=0)

    return rule


def average_backward(spatial: int, adaptive: bool) -> RuleFunction:
    """Returns the rule function of the gradient of an average pooling.

    Where windows are alike and side by side, each gradient is spread over the pixels of its own.

    Args:
        spatial: How many dimensions are pooled.
        adaptive: Whether the windows follow from the sizes alone.
    """

    def rule(call: OpCall) -> Rule | None:
        grad, image = (operand.shape for operand in call.operands)
        lead = factors("i", len(image) - spatial)
        few: list[tuple[str, ...]] = []
        many: list[tuple[str, ...]] = []
        whole: list[str] = []
        sizes: dict[str, IntExpr] = {}
        pairs = zip(grad[-spatial:], image[-spatial:], strict=True)
        tiled = (True,) * spatial if adaptive else _tiled(call, image[-spatial:])
        for at, (outputs, inputs) in enumerate(pairs):
            each = exact_quotient(inputs, outputs) if tiled[at] else None
            few.append((f"y{at}",))
            many.append((f"y{at}", f"k{at}") if each is not None else (f"x{at}",))
            whole.extend([f"k{at}"] if each is not None else [f"x{at}", f"y{at}"])
            if each is not None:
                sizes[f"k{at}"] = each
        images = (*lead, *many)
        return build_rule(
            call,
            [(*lead, *few), images],
            [images],
            sizes=sizes,
            whole=whole,
            linear=FIRST,
            work=0,
        )

    return rule


def grid_sampler(image: str, points: str) -> RuleFunction:
    """Returns the rule function of a sampling of images at the points of a grid.

    Args:
        image: The factors of the image.
        points: Those of the grid.
    """
    text = f"n c {image}, n {points} d -> n c {points}"
    whole = (*image.split(), "d")

    def rule(call: OpCall) -> Rule | None:
        work = _taps(call, len(image.split()))
        return make_rule(text, call, whole=whole, linear=FIRST, work=work, aside=whole)

    return rule


def _taps(call: OpCall, spatial: int) -> int:
    """Returns the operations of an element that is interpolated; 1 is the mode of the nearest."""
    per_dimension = {0: 2, 1: 1}.get(call.integer("interpolation_mode", 0), 4)
    return TAP * math.prod([per_dimension] * spatial)


def grid_sampler_backward(spatial: int) -> RuleFunction:
    """Returns the rule function of the gradients of images and of the grid, or of one of them.

    A grid's points add to all images' channels, and each channel adds to the grid's gradient.
    """

    def rule(call: OpCall) -> Rule | None:
        points, pixels = factors("p", spatial), factors("x", spatial)
        images, grid = (("n",), ("c",), *pixels), (("n",), *points, ("d",))
        mask = call.args.get("output_mask")
        kept = mask if isinstance(mask, tuple) and len(call.results) < 2 else (True, True)
        results = [dims for dims, keep in zip((images, grid), kept, strict=True) if keep]
        reduce = dict.fromkeys(("c", *(name for (name,) in points)), "sum")
        return build_rule(
            call,
            [(("n",), ("c",), *points), images, grid],
            results,
            whole=("d", *(name for (name,) in pixels)),
            reduce=reduce,
            linear=FIRST,
            # Each tap adds to the image's gradient and to both the grid's coordinates.
            work=3 * _taps(call, spatial),
            aside=("d", *(name for (name,) in pixels)),
        )

    return rule


def affine_grid(call: OpCall) -> Rule | None:
    """aten.affine_grid_generator: the points of a grid for images of shape `size`."""
    size = map(open_size, integers(call, "size")[1:])
    return make_rule(
        "n r c -> n *p r",
        call,
        whole=("*p", "r", "c"),
        linear=FIRST,
        local={"size": Sizes((("n",), *size))},
        work=0,
    )


def unpool(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.max_unpool: pixels return to where their maximum was."""
    few, many = (" ".join(f"{name}{at}" for at in range(spatial)) for name in "xy")
    whole = [*few.split(), *many.split()]
    return row(f"*n {few}, *n {few} -> *n {many}", whole=whole, linear=FIRST, work=0)


def fourier(call: OpCall) -> Rule | None:
    """A Fourier transform along the dimensions in `dim`: 5 n log2(n) operations, as is custom."""

    def dims(call: OpCall) -> frozenset[int]:
        return axes(call, len(call.operands[0].shape))

    shapes = (call.operands[0].shape, call.results[0].shape)
    count = math.prod(max(planned(shape[at]) for shape in shapes) for at in dims(call))
    return along(dims, FIRST, work=5 * max(1, math.log2(max(1, count))))(call)


def histogram(call: OpCall) -> Rule | None:
    """aten.histc: counts add up if the range doesn't depend on the data."""
    names = factors("i", len(call.operands[0].shape))
    fixed = call.args.get("min", 0) != call.args.get("max", 0)
    return build_rule(
        call,
        [names],
        [(("n",),)],
        reduce={name: "sum" for (name,) in names},
        whole=("n",) if fixed else ("n", *(name for (name,) in names)),
        work=COMPARISON,
        aside=("n",),
    )


def cross(call: OpCall) -> Rule | None:
    """aten.linalg_cross of vectors along `dim`."""
    shape = call.results[0].shape
    operands = [broadcast_dims(operand.shape, shape) for operand in call.operands]
    at = axis(call, len(shape), default=-1)
    whole = (f"i{at}",)
    return build_rule(
        call,
        operands,
        [broadcast_dims(shape, shape)],
        whole=whole,
        linear=(pending(0), pending(1)),
        work=3,
    )


def prelu(call: OpCall) -> Rule | None:
    """aten.prelu: one slope for all, or one per channel, in dimension 1."""
    dims = factors("i", len(call.operands[0].shape))
    slope = call.operands[1].shape
    per_channel: Dims = dims[1:2] if slope and slope[0] != 1 else ((),) * len(slope)
    return build_rule(call, [dims, per_channel], [dims])


RULES: Table = {
    "aten.col2im.default": col2im,
    "aten.channel_shuffle.default": channel_shuffle,
    "aten.native_channel_shuffle.default": channel_shuffle,
    "aten.grid_sampler_2d.default": grid_sampler("x y", "h w"),
    "aten.grid_sampler_2d_backward.default": grid_sampler_backward(2),
    "aten.grid_sampler_3d_backward.default": grid_sampler_backward(3),
    "aten.affine_grid_generator.default": affine_grid,
    "aten.max_unpool2d.default": unpool(2),
    "aten.max_unpool3d.default": unpool(3),
    "aten.grid_sampler_3d.default": grid_sampler("x y z", "t h w"),
    **same(["aten._fft_r2c.default", "aten._fft_c2c.default", "aten._fft_c2r.default"], fourier),
    "aten.histc.default": histogram,
    "aten.linalg_cross.default": cross,
    "aten.prelu.default": prelu,
    **same(
        ["aten.outer.default", "aten.ger.default"],
        row("m, n -> m n", linear=(pending(0), pending(1))),
    ),
    **{f"aten.avg_pool{n}d_backward.default": average_backward(n, False) for n in (2, 3)},
    **{f"aten._adaptive_avg_pool{n}d_backward.default": average_backward(n, True) for n in (2, 3)},
    **{f"aten.fractional_max_pool{n}d.default": fractional_pool(n) for n in (2, 3)},
    **{f"aten.fractional_max_pool{n}d_backward.default": dense(images_backward(n)) for n in (2, 3)},
    "aten.adaptive_max_pool2d_backward.default": images_backward(2),
    "aten.adaptive_max_pool3d_backward.default": dense(images_backward(3)),
}
