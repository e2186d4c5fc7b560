"""Convolutions and their gradients. Spatial dimensions are split as `spatial` says."""

from __future__ import annotations

import math
from dataclasses import replace

from autopar.ir.expr.expression import IntExpr, add, planned, prod
from autopar.ir.ops.body import BodyWriter, Write, body, with_bodies
from autopar.ir.ops.image.spatial import Space, axes_of, spatial
from autopar.ir.ops.table import BILINEAR, RuleFunction, Table, pending, per_dim, same
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.local_arg import IfSplit, LocalArg, Size, Sizes
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule

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
        if len(call.operands[0].shape) != len(call.operands[1].shape):
            return None
        if call.args.get("padding") == "same":
            return _same_padding(call)
        return _convolution(call, swap)

    return rule


def _convolution(call: OpCall, swap: bool) -> Rule:
    groups = call.integer("groups", 1)
    space = spatial(call, swap)
    group = ("g",) if groups > 1 else ()
    channels, features = (*group, "i"), (*group, "o")
    weight_dims: Dims = (channels, ("o",)) if swap else (features, ("i",))
    operands: list[Dims] = [(("n",), channels, *space.inside), (*weight_dims, *space.kernel)]
    if biased := len(call.operands) == 3:
        operands.append((features,))
    local: dict[str, LocalArg] = {"groups": Size(("g",))} if group else {}
    local |= _padding_args(call, space)

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            operands,
            [(("n",), features, *space.outside)],
            sizes={**space.sizes, "g": groups} if group else space.sizes,
            reduce={"i": "sum"},
            whole=space.whole if split or not biased else [*space.whole, "i"],
            linear=BIASED if biased else BILINEAR,
            windows=space.windows,
            local=local,
            work=2 / max(1, space.excess),
        )

    return with_bodies(make, "product", _add_bias) if biased else make(False)


def _padding_args(call: OpCall, space: Space) -> dict[str, LocalArg]:
    """Returns the paddings of a part, where they differ from the whole's."""
    found: dict[str, LocalArg] = {}
    named = (("padding", space.padding), ("output_padding", space.output_padding))
    for name, entries in named:
        changes = any(isinstance(each, IfSplit) and each.then != each.otherwise for each in entries)
        if changes and not isinstance(call.args.get(name), str):
            found[name] = Sizes(tuple(entries))
    return found


def _add_bias(w: BodyWriter) -> None:
    args: dict[str, Arg] = dict(w.op.args)
    if w.op.kind == "aten.convolution.default":
        args["bias"] = None
    else:
        del args["bias"]
    _product_and_bias(w, w.op.kind, args)


def _product_and_bias(w: BodyWriter, kind: str, args: dict[str, Arg]) -> None:
    """Writes a convolution without bias, and adds the bias if there is one."""
    target = w.value(w.op.results[0])
    shape, bias = target.global_shape, w.name("bias")
    if bias is None:
        w.emit(kind, args, shape, target.dtype, target.name)
        return
    product = w.emit(kind, args, shape, target.dtype)
    column = w.reshape(bias, (shape[1], *(1,) * (len(shape) - 2)))
    w.combine("aten.add.Tensor", product, column, target.name)


def _same_padding(call: OpCall) -> Rule:
    """A convolution that pads `same`. A part pads nothing, so that its body spells the padding."""
    weight = call.operands[1].shape[2:]
    dilations = per_dim(call, "dilation", len(weight), 1)
    both = tuple((size - 1) * d for size, d in zip(weight, dilations, strict=True))
    before = tuple(each // 2 for each in both)
    split = _convolution(replace(call, args={**call.args, "padding": before}), False)
    if not split.windows:
        return split
    product = split.under("product")
    split = replace(split, bodies=(), whole=product.whole, reduce=product.reduce)
    spatial = {name for read, window in split.windows.items() for name in (read, window.of)}
    whole = split.whole | spatial | ({"i"} if len(call.operands) == 3 else set())
    local = {name: arg for name, arg in split.local.items() if name != "padding"}
    own = replace(split, whole=whole, windows={}, local=local)

    def write(w: BodyWriter) -> None:
        args: dict[str, Arg] = dict(w.op.args)
        args.pop("bias", None)
        x = w.value(w.required("input"))
        more = [after - 2 * each for after, each in zip(both, before, strict=True)]
        if any(more):
            shape = [*x.global_shape[:2], *map(add, x.global_shape[2:], more)]
            pad: list[Arg] = [n for each in reversed(more) for n in (0, each)]
            padding: dict[str, Arg] = {"self": Ref(x.name), "pad": tuple(pad)}
            padded = w.emit("aten.constant_pad_nd.default", padding, shape, x.dtype)
            args["input"] = Ref(padded)
        args["padding"] = before
        _product_and_bias(w, call.kind.replace(".padding", ".default"), args)

    return replace(own, bodies=(body("padded", split, write),))


def convolution_backward(call: OpCall) -> Rule | None:
    """aten.convolution_backward: gradients of input, weight and bias, those in `output_mask`.

    Where all are wanted, they are read through different windows, so that each is computed alone.
    """
    data, weight = call.operands[1].shape, call.operands[2].shape
    mask = call.args.get("output_mask")
    kept = mask if isinstance(mask, tuple) else (True, True, True)
    chosen = [at for at in range(3) if kept[at]]
    if len(call.results) != len(chosen) or len(data) != len(weight):
        return None
    swap, groups = call.flag("transposed"), call.integer("groups", 1)
    space = _gradient_space(call, swap, bool(kept[0]))
    reads_input = not kept[0] and not swap
    inside, outside = (
        (space.outside, space.inside) if reads_input else (space.inside, space.outside)
    )
    group = ("g",) if groups > 1 else ()
    channels, features = (*group, "i"), (*group, "o")
    weights: Dims = (channels, ("o",)) if swap else (features, ("i",))
    tensors: list[Dims] = [(("n",), channels, *outside), (*weights, *space.kernel), (features,)]
    spatial = [name for read, window in space.windows.items() for name in (read, window.of)]
    alone = not kept[0] and not (swap and kept[2])
    # Either gradient multiplies as often as the convolution: each weight at each coarse position.
    coarse = data if swap else call.operands[0].shape
    products = 2 * planned(prod((*weight, coarse[0], *coarse[2:])))
    local: dict[str, LocalArg] = {"groups": Size(("g",))} if group else {}
    if call.args.get("bias_sizes"):
        local["bias_sizes"] = Sizes((features,))

    def make(split: bool) -> Rule:
        windowed = split or alone
        # Every part would compute the bias's gradient, and kernels don't without input channels.
        whole = [*space.whole, *(("i",) if kept[2] and not split else ())]
        found = build_rule(
            call,
            [(("n",), features, *inside), *tensors[:2]],
            [tensors[at] for at in chosen],
            sizes={**space.sizes, "g": groups} if group else space.sizes,
            reduce=_gradient_sums(chosen, space),
            whole=whole if windowed else [*whole, *spatial],
            linear=(pending(0),),
            windows=space.windows if windowed else None,
            local=local | (_padding_args(call, space) if windowed else {}),
        )
        points = math.prod(max(1, planned(size)) for size in found.sizes.values())
        return replace(found, work=products * sum(map(bool, kept[:2])) / points)

    if kept[0] and not swap and not all(isinstance(more, int) for more in _missing(call)):
        # The body has to tell in numbers how far windows reach.
        return make(False)
    return with_bodies(make, "parts", _gradients(call, swap, kept))


def _missing(call: OpCall) -> list[IntExpr]:
    """Returns the output paddings of the gradient of a convolution's input, a transposed one."""
    grad, data = call.operands[0].shape[2:], call.operands[1].shape[2:]
    return [each.missing for each in axes_of(call, 2, grad, data)]


def _gradient_space(call: OpCall, swap: bool, of_input: bool) -> Space:
    """Returns the factors of the spatial dimensions of a gradient.

    The gradient of the input is the other kind of convolution of the output's gradient. That of
    the weight joins each position of the coarse side with a window of the fine one.
    """
    grad, data = call.operands[0].shape[2:], call.operands[1].shape[2:]
    ends = (data, grad) if swap else (grad, data)
    found = Space()
    for at, each in enumerate(axes_of(call, 2, *ends)):
        found.add(at, each, 0, transposed=of_input and not swap)
    if swap and not of_input:
        more = per_dim(call, "output_padding", len(data), 0)
        found.output_padding = [IfSplit(f"y{at}", 0, each) for at, each in enumerate(more)]
    return found


def _gradient_sums(chosen: list[int], space: Space) -> dict[tuple[str, int], str]:
    spatial = [name for dim in space.outside for name in dim]
    reduce: dict[tuple[str, int], str] = {}
    for position, at in enumerate(chosen):
        summed = ("o",) if at == 0 else ("n", *spatial)
        reduce |= {(name, position): "sum" for name in summed}
        if at == 2:
            reduce["i", position] = SAME
    return reduce


def _gradients(call: OpCall, swap: bool, kept: tuple[Arg, ...]) -> Write:
    """Returns what writes each gradient as an op of its own."""
    grad, data, weight = (operand.shape for operand in call.operands)
    count = len(data) - 2

    def write(w: BodyWriter) -> None:
        results = iter(w.op.results)
        args: dict[str, Arg] = dict(w.op.args)
        y, kernel = args["grad_output"], args["weight"]
        if kept[0]:
            more = [0] * count if swap else _missing(call)
            settings = {name: args[name] for name in ("stride", "padding", "dilation")}
            w.emit(
                "aten.convolution.default",
                {
                    "input": y,
                    "weight": kernel,
                    "bias": None,
                    **settings,
                    "transposed": not swap,
                    "output_padding": tuple(more),
                    "groups": args["groups"],
                },
                data,
                call.results[0].dtype,
                next(results),
            )
        if kept[1]:
            only = {**args, "bias_sizes": None, "output_mask": (False, True, False)}
            w.emit(w.op.kind, only, weight, call.operands[2].dtype, next(results))
        if kept[2]:
            dims = (0, *range(2, count + 2))
            summed: dict[str, Arg] = {"self": y, "dim": dims}
            w.emit("aten.sum.dim_IntList", summed, grad[1:2], call.operands[0].dtype, next(results))

    return write


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
