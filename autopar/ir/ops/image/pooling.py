"""Pooling and resizing: like convolutions, each part of the output reads a window of the input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.facts import divides
from autopar.ir.expr.periodic import least_value
from autopar.ir.ops.body import BodyWriter, with_body
from autopar.ir.ops.image.spatial import Axis
from autopar.ir.ops.reduce.reduction import mean
from autopar.ir.ops.shape.sizes import integers
from autopar.ir.ops.table import TAP, RuleFunction, Table, factors, operand_dims, pending, per_dim
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.local_arg import IfSplit, LocalArg, Offset, Size, Sizes
from autopar.ir.rules.rule import Dims, Linear, OpCall, Rule, build_rule
from autopar.ir.rules.window import Fill, Window

SUM, MAX = pending(0), pending(0, monoids=("max",))


def windowed(
    call: OpCall,
    windows: Sequence[Window | None],
    linear: Sequence[Linear] = (),
    local: Mapping[str, LocalArg] | None = None,
    work: float = 0,
) -> Rule:
    """Returns the rule of an op whose last dimensions are read through windows.

    Args:
        call: The call.
        windows: Per dimension of the last ones; None where it must be whole. `of` is filled in.
        linear, local: As in `Rule`.
        work: Operations per element of the result.
    """
    rank, count = len(call.operands[0].shape), len(windows)
    lead = factors("i", rank - count)
    inside, outside = factors("x", count), factors("y", count)
    found = {
        f"x{at}": Window(f"y{at}", each.stride, each.start, each.length, each.fill)
        for at, each in enumerate(windows)
        if each is not None
    }
    whole = [f"{side}{at}" for at, each in enumerate(windows) if each is None for side in "xy"]
    result: Dims = (*lead, *outside)
    return build_rule(
        call,
        [(*lead, *inside)],
        [result] * len(call.results),
        whole=whole,
        linear=linear,
        windows=found,
        local=local,
        work=work,
        aside=[name for (name,) in inside] if work else (),
    )


@dataclass(frozen=True)
class Pool:
    """One dimension of a pooling.

    Attributes:
        size, outputs: Sizes of the dimension before and after.
        kernel, stride, padding, dilation: As in the arguments.
    """

    size: IntExpr
    outputs: IntExpr
    kernel: int
    stride: int
    padding: int
    dilation: int

    def window(self, fill: Fill) -> Window:
        """Returns the window of each output."""
        return Window("", self.stride, -self.padding, (self.kernel - 1) * self.dilation + 1, fill)

    @property
    def overhangs(self) -> bool:
        """Whether the last window, rounded up, may go beyond the padding."""
        span = (self.outputs - 1) * self.stride + self.window(0).length
        least = least_value(self.size + 2 * self.padding - span)
        return least is None or least < 0


def pools(call: OpCall, spatial: int) -> list[Pool]:
    """Returns the dimensions of a pooling of the last `spatial` ones."""
    kernel = per_dim(call, "kernel_size", spatial, 1)
    stride = per_dim(call, "stride", spatial, 0)
    sizes, outputs = (tensor.shape[-spatial:] for tensor in (call.operands[0], call.results[0]))
    each = zip(
        sizes,
        outputs,
        kernel,
        (step or size for step, size in zip(stride, kernel, strict=True)),
        per_dim(call, "padding", spatial, 0),
        per_dim(call, "dilation", spatial, 1),
        strict=True,
    )
    return [Pool(*numbers) for numbers in each]


def _padding(dims: Sequence[Pool], windows: Sequence[Window | None]) -> dict[str, LocalArg]:
    """Returns the padding of a part: none where its window covers it."""
    if not any(each.padding for each in dims):
        return {}
    entries = (
        each.padding if window is None else IfSplit(f"y{at}", 0, each.padding)
        for at, (each, window) in enumerate(zip(dims, windows, strict=True))
    )
    return {"padding": Sizes(tuple(entries))}


def max_pool(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.max_pool1d, 2d or 3d."""

    def rule(call: OpCall) -> Rule | None:
        dims = pools(call, spatial)
        windows = [each.window("least") for each in dims]
        return windowed(call, windows, (MAX,), _padding(dims, windows))

    return rule


def avg_pool(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.avg_pool1d, 2d or 3d.

    A dimension is whole where the number to divide by depends on the position: if padding isn't
    counted, or the last window goes beyond it.
    """

    def rule(call: OpCall) -> Rule | None:
        dims = pools(call, spatial)
        fixed = call.args.get("divisor_override") is not None
        counted = call.flag("count_include_pad", True)
        rounded_up = call.flag("ceil_mode")
        windows = [
            each.window(0)
            if fixed or not ((rounded_up and each.overhangs) or (each.padding and not counted))
            else None
            for each in dims
        ]
        return windowed(call, windows, (SUM,), _padding(dims, windows))

    return rule


def max_pool_with_indices(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.max_pool2d_with_indices and its kin."""

    def rule(call: OpCall) -> Rule | None:
        return _placed(call, pools(call, spatial), call.flag("ceil_mode"))

    return rule


def adaptive_max_pool(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.adaptive_max_pool1d, 2d or 3d.

    Where all windows are alike, it is a pooling with a kernel as large as its stride.
    """

    def rule(call: OpCall) -> Rule | None:
        dims = _adaptive(call, spatial)
        if None in dims:
            return windowed(call, [None] * spatial)
        return _placed(call, [each for each in dims if each], False)

    return rule


def adaptive_avg_pool(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.adaptive_avg_pool1d, 2d or 3d; to one element, a mean."""

    def last_dims(call: OpCall) -> range:
        rank = len(call.operands[0].shape)
        return range(rank - spatial, rank)

    to_one = mean(last_dims)

    def rule(call: OpCall) -> Rule | None:
        if set(call.results[0].shape[-spatial:]) == {1}:
            return to_one(call)
        windows = [each.window(0) if each else None for each in _adaptive(call, spatial)]
        local = {"output_size": Sizes(tuple((f"y{at}",) for at in range(spatial)))}
        return windowed(call, windows, (SUM,), local)

    return rule


def _adaptive(call: OpCall, spatial: int) -> list[Pool | None]:
    """Returns the pooling along each dimension; None where its windows differ."""
    sizes, outputs = (tensor.shape[-spatial:] for tensor in (call.operands[0], call.results[0]))
    return [
        Pool(size, count, size // count, size // count, 0, 1)
        if isinstance(size, int) and isinstance(count, int) and count and size % count == 0
        else None
        for size, count in zip(sizes, outputs, strict=True)
    ]


def _placed(call: OpCall, dims: Sequence[Pool], ceil_mode: bool) -> Rule:
    """Returns the rule of a pooling with indices, which count the elements of the whole plane.

    A part has to know where it begins: the body is an op that is told.
    """
    own = windowed(call, [None] * len(dims), work=_compared(dims))
    split = _parts(call, dims)
    args: dict[str, Arg] = {
        name: tuple(getattr(each, name) for each in dims)
        for name in ("kernel", "stride", "padding", "dilation")
    }
    args["kernel_size"] = args.pop("kernel")
    plane = tuple(each.size for each in dims)
    more: dict[str, Arg] = {"ceil_mode": ceil_mode, "starts": (0,) * len(dims), "plane": plane}

    def write(w: BodyWriter) -> None:
        own_args: dict[str, Arg] = {"self": Ref(w.required("self")), **args, **more}
        w.emit_all("autopar.max_pool_with_indices", own_args)

    return with_body(own, split, "placed", write)


def _parts(call: OpCall, dims: Sequence[Pool]) -> Rule:
    windows = [each.window("least") for each in dims]
    return windowed(call, windows, (), _padding(dims, windows), work=_compared(dims))


def _compared(dims: Sequence[Pool]) -> float:
    """Returns the operations of an output: each element of its window is compared, and placed."""
    return 4 * TAP * math.prod(each.kernel for each in dims)


def placed_max_pool(call: OpCall) -> Rule | None:
    """autopar.max_pool_with_indices: a part begins at `starts` of the plane, as it may itself."""
    dims = pools(call, len(integers(call, "plane")))
    rule = _parts(call, dims)
    starts = tuple(
        IfSplit(f"y{at}", Offset(f"y{at}", start - each.padding, each.stride), _fixed(start))
        for at, (each, start) in enumerate(zip(dims, integers(call, "starts"), strict=True))
    )
    return replace(rule, local={**rule.local, "starts": Sizes(starts)})


def _fixed(start: IntExpr) -> int | LocalArg:
    """Returns where a part begins that isn't split."""
    return start if isinstance(start, int) else Size((), start)


def max_pool_backward(spatial: int) -> RuleFunction:
    """Returns the rule function of aten.max_pool2d_with_indices_backward and its kin."""

    def rule(call: OpCall) -> Rule | None:
        (at,) = call.positions["self"]
        plane = call.operands[at].shape[-spatial:]
        split = _gradient(call, plane)
        own = _gradient(call, plane, split=False)

        def write(w: BodyWriter) -> None:
            args: dict[str, Arg] = {
                name: Ref(w.required(name)) for name in ("grad_output", "indices")
            }
            for name in ("kernel_size", "stride", "padding", "dilation"):
                args[name] = w.op.arg(name)
            args |= {"starts": (0,) * spatial, "plane": plane, "sizes": plane}
            w.emit_all("autopar.max_pool_backward", args)

        return with_body(own, split, "placed", write)

    return rule


def placed_max_pool_backward(call: OpCall) -> Rule | None:
    """autopar.max_pool_backward: the gradient of a part that begins at `starts` of the plane."""
    return _gradient(call, integers(call, "plane"))


def _gradient(call: OpCall, plane: Sequence[IntExpr], split: bool = True) -> Rule:
    """Returns the rule of the gradient of a pooling.

    A part of it consists of runs of `stride` positions, and reads a window of what was pooled. What
    is a part already has that window, and where it begins in it isn't known.
    """
    coarse, count = call.operands[0].shape[-len(plane) :], len(plane)
    lead = factors("i", len(call.operands[0].shape) - count)
    strides = per_dim(call, "stride", count, 0)
    settings = [
        per_dim(call, name, count, default)
        for name, default in (("kernel_size", 1), ("padding", 0), ("dilation", 1))
    ]
    inside, outside = factors("x", count), []
    own = integers(call, "sizes") if "sizes" in call.args else tuple(plane)
    windows: dict[str, Window] = {}
    sizes: dict[str, IntExpr] = {}
    fixed: list[str] = []
    for at, (kernel, padding, dilation) in enumerate(zip(*settings, strict=True)):
        axis = Axis(coarse[at], own[at], kernel, strides[at] or kernel, padding, dilation)
        even = divides(axis.stride, axis.fine)
        runs = even and axis.stride > 1
        outside.append((f"y{at}", f"r{at}") if runs else (f"y{at}",))
        fixed += [f"r{at}"] if runs else []
        sizes |= {f"r{at}": axis.stride} if runs else {}
        if split and even and own[at] == plane[at]:
            windows[f"x{at}"] = axis.touching(f"y{at}")
        else:
            fixed += [f"x{at}", f"y{at}"]
    whole = (*lead, *outside)
    local: dict[str, LocalArg] = {}
    if "sizes" in call.args:
        local["sizes"] = Sizes(tuple(outside))
        starts = (
            IfSplit(f"y{at}", Offset(f"y{at}", 0, strides[at] or settings[0][at]), _fixed(start))
            for at, start in enumerate(integers(call, "starts"))
        )
        local["starts"] = Sizes(tuple(starts))
    pooled: Dims = (*lead, *inside)
    named = {"grad_output": pooled, "indices": pooled, "self": whole}
    return build_rule(
        call,
        operand_dims(call, named),
        [whole],
        sizes=sizes,
        whole=fixed,
        windows=windows,
        linear=(pending(0),),
        local=local,
        work=0,
    )


RULES: Table = {
    **{f"aten.max_pool{n}d.default": max_pool(n) for n in (1, 2, 3)},
    **{f"aten.max_pool{n}d_with_indices.default": max_pool_with_indices(n) for n in (1, 2, 3)},
    "autopar.max_pool_with_indices": placed_max_pool,
    **{f"aten.max_pool{n}d_with_indices_backward.default": max_pool_backward(n) for n in (2, 3)},
    "autopar.max_pool_backward": placed_max_pool_backward,
    **{f"aten.avg_pool{n}d.default": avg_pool(n) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": adaptive_avg_pool(n) for n in (2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": adaptive_avg_pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_max_pool{n}d.default": adaptive_max_pool(n) for n in (1, 2, 3)},
}
