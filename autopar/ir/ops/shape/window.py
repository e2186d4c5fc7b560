"""Ops that take, add or turn around what lies along a dimension: slice, cat, pad, roll, flip.

Each index of the result stands for one of the operand's, or a few, so a part of the result reads a
window of the operand. What a window covers is what the part needs, in order: it cuts, pads and
rolls nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.ir.emitted import WINDOW
from autopar.ir.expr.expression import IntExpr, prod
from autopar.ir.expr.facts import divides
from autopar.ir.ops.reduce.reduction import along, first_dim
from autopar.ir.ops.shape.layout import blocks, moved
from autopar.ir.ops.shape.sizes import common_block, integers, open_size, start_of
from autopar.ir.ops.table import (
    FIRST,
    IDEMPOTENT,
    MOVED,
    RuleFunction,
    Table,
    axes,
    axis,
    copies,
    factors,
    pending,
    per_dim,
    same,
    whole,
)
from autopar.ir.rules.local_arg import IfSplit, LocalArg, Size, Sizes
from autopar.ir.rules.rule import Linear, OpCall, Rule, RuleError, build_rule
from autopar.ir.rules.window import Fill, Window


def slice_(call: OpCall) -> Rule | None:
    """aten.slice.Tensor. All of a dimension, or some of the blocks that it consists of.

    Where start, end and size have a common divisor `e`, the dimension is `(n e)`, and `e` may be
    split: each part of every block goes its own way. So a fused query, key and value are split.
    """
    shape = call.operands[0].shape
    at = axis(call, len(shape))
    size, result = shape[at], call.results[0].shape[at]
    step = call.integer("step", 1)
    if result == 0:
        return along(first_dim, MOVED, work=0)(call)
    if size == result:
        dims = factors("i", len(shape))
        return moved(call, dims, dims)
    start = start_of(call, size)
    if start is None:
        return blocks(call, at, factors("i", len(shape)), 1, {})
    block = common_block((start, result, size)) if step == 1 else 1
    stop = start + ((result - 1) * step + 1)
    part = _blocks("r0 e", block, step * block)
    local: dict[str, LocalArg] = {
        "start": IfSplit("r0", 0, _blocks("e", block, start)),
        "end": IfSplit("r0", part, _blocks("e", block, stop)),
    }
    windows = {"s0": Window("r0", step, start // block)}
    return blocks(call, at, factors("i", len(shape)), block, local, windows)


def _blocks(names: str, block: IntExpr, size: IntExpr) -> LocalArg | int:
    """Returns the rule for a number of elements along a dimension that consists of blocks."""
    found = tuple(name for name in names.split() if name != "e" or block != 1)
    return Size(found, size // block) if found else open_size(size)


def narrow_copy(call: OpCall) -> Rule | None:
    """aten.narrow_copy: some of the blocks of which `dim` consists."""
    shape = call.operands[0].shape
    at = axis(call, len(shape))
    length = call.results[0].shape[at]
    start = start_of(call, shape[at])
    if start is None:
        return blocks(call, at, factors("i", len(shape)), 1, {})
    block = common_block((start, length, shape[at]))
    local: dict[str, LocalArg] = {
        "start": IfSplit("r0", 0, _blocks("e", block, start)),
        "length": IfSplit("r0", _blocks("r0 e", block, block), _blocks("e", block, length)),
    }
    windows = {"s0": Window("r0", 1, start // block)}
    return blocks(call, at, factors("i", len(shape)), block, local, windows)


def cat(call: OpCall) -> Rule | None:
    """aten.cat along `dim`, of blocks of a common size. A part reads what it has of each tensor."""
    result = call.results[0].shape
    at = axis(call, len(result))
    sizes = [o.shape[at] if len(o.shape) == len(result) else 0 for o in call.operands]
    block = common_block(sizes)
    windows: dict[str, Window] = {}
    start: IntExpr = 0
    for position, size in enumerate(sizes):
        if size != 0:
            windows[f"s{position}"] = Window("r0", 1, start * -1, 1, "none")
        start = start + size // block
    return blocks(call, at, factors("i", len(result)), block, {}, windows)


def _along(
    call: OpCall,
    windows: Mapping[int, Window],
    linear: tuple[Linear, ...],
    local: Mapping[str, LocalArg] | None = None,
) -> Rule:
    """Returns the rule of an op of one tensor, some of whose dimensions are read through windows.

    The dimensions of the result are `i0 i1 ...`; `of` of the windows is filled in.
    """
    result = factors("i", len(call.operands[0].shape))
    operand = tuple((f"x{at}",) if at in windows else dim for at, dim in enumerate(result))
    return build_rule(
        call,
        [operand],
        [result],
        linear=linear,
        windows={f"x{at}": replace(each, of=f"i{at}") for at, each in windows.items()},
        local=local,
        work=0,
    )


def _padded(call: OpCall, name: str, fill: Fill, linear: tuple[Linear, ...]) -> Rule:
    """Returns the rule of a padding by the pairs in an argument, the last dimension first."""
    shape = call.operands[0].shape
    pairs = integers(call, name)
    last = len(shape) - 1
    windows = {
        last - at: Window("", 1, before * -1, 1, fill)
        for at, (before, after) in enumerate(zip(pairs[::2], pairs[1::2], strict=True))
        if before != 0 or after != 0
    }
    entries = [IfSplit(f"i{last - at // 2}", 0, open_size(each)) for at, each in enumerate(pairs)]
    return _along(call, windows, linear, {name: Sizes(tuple(entries))} if windows else None)


def constant_pad(call: OpCall) -> Rule | None:
    """aten.constant_pad_nd: zeros survive a sum, any constant an idempotent reduction."""
    value = call.args.get("value", 0)
    if not isinstance(value, (bool, int, float)):
        raise RuleError(f"{call.kind} fills with {value!r}")
    monoids = IDEMPOTENT | {"sum"} if value == 0 else IDEMPOTENT
    return _padded(call, "pad", value, (pending(0, monoids=monoids),))


def continued_pad(fill: str) -> RuleFunction:
    """Returns the rule function of a padding with what lies near the border."""

    def rule(call: OpCall) -> Rule | None:
        if any(each < 0 for each in call.integers("padding")):
            raise RuleError(f"{call.kind} cuts before it pads")
        return _padded(call, "padding", fill, MOVED)

    return rule


def cut_out(call: OpCall) -> Rule | None:
    """autopar.window: the elements from `low` to `high` of `dim`, which must be whole."""
    dims = factors("i", len(call.operands[0].shape))
    at, fill = axis(call, len(dims)), call.args.get("fill")
    monoids = {0: IDEMPOTENT | {"sum"}, "least": frozenset(("max",))}.get(fill, IDEMPOTENT)
    operand, result = ((*dims[:at], (name,), *dims[at + 1 :]) for name in ("s", "r"))
    linear = (pending(0, monoids=monoids),)
    return build_rule(call, [operand], [result], whole=["s", "r"], linear=linear, work=0)


def flip(call: OpCall) -> Rule | None:
    """aten.flip: the first part of the result is the last of the operand, backwards."""
    shape = call.operands[0].shape
    windows = {at: _backwards(shape[at]) for at in axes(call, len(shape), "dims")}
    return _along(call, windows, MOVED)


def _backwards(size: IntExpr, of: str = "") -> Window:
    return Window(of, -1, size - 1)


def roll(call: OpCall) -> Rule | None:
    """aten.roll: dimensions continued as circles. Without `dims`, all elements are one circle."""
    shape = call.operands[0].shape
    shifts = call.integers("shifts")
    dims = [at % max(1, len(shape)) for at in call.integers("dims")]
    if not dims and len(shape) == 1:
        dims = [0]
    if not dims or len(dims) != len(shifts) or 0 in shape:
        return whole(call, MOVED)
    total = dict.fromkeys(dims, 0)
    for at, shift in zip(dims, shifts, strict=True):
        total[at] += shift
    windows = {at: Window("", 1, -shift, 1, "wrap") for at, shift in total.items()}
    entries = (IfSplit(f"i{at}", 0, each) for at, each in zip(dims, shifts, strict=True))
    return _along(call, windows, MOVED, {"shifts": Sizes(tuple(entries))})


def rotate(call: OpCall) -> Rule | None:
    """aten.rot90: dimensions change places, and one or both of them their direction."""
    shape = call.operands[0].shape
    first, second = (at % len(shape) for at in call.integers("dims", (0, 1)))
    turns = call.integer("k", 1) % 4
    result = list(factors("i", len(shape)))
    backwards = {0: (), 1: (second,), 2: (first, second), 3: (first,)}[turns]
    windows = {f"x{at}": _backwards(shape[at], f"i{at}") for at in backwards}
    operand = tuple((f"x{at}",) if at in backwards else dim for at, dim in enumerate(result))
    if turns % 2:
        result[first], result[second] = result[second], result[first]
    return build_rule(call, [operand], [tuple(result)], linear=MOVED, windows=windows, work=0)


def unfold(call: OpCall) -> Rule | None:
    """aten.unfold: windows along `dimension`, their elements in a new last dimension."""
    shape = call.operands[0].shape
    if not shape:
        return whole(call, MOVED)
    at = axis(call, len(shape), "dimension")
    size, step = call.integer("size", 1), call.integer("step", 1)
    dims = factors("i", len(shape))
    result = (*dims[:at], ("w",), *dims[at + 1 :], ("e",))
    if size == step and divides(size, shape[at]):
        operand = (*dims[:at], ("w", "e"), *dims[at + 1 :])
        return moved(call, operand, result, ["e"])
    windows = {f"i{at}": Window("w", step, 0, size)}
    return build_rule(call, [dims], [result], whole=["e"], linear=MOVED, windows=windows, work=0)


def im2col(call: OpCall) -> Rule | None:
    """aten.im2col: channels `c` become `(c k)`, with the positions in the kernel."""
    kernel, stride, padding, dilation = (
        per_dim(call, name, 2, default)
        for name, default in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    )
    lead = factors("n", len(call.operands[0].shape) - 3)
    sizes: dict[str, IntExpr] = {"k": prod(kernel)}
    windows: dict[str, Window] = {}
    for at, size in enumerate(call.operands[0].shape[-2:]):
        reach = (kernel[at] - 1) * dilation[at] + 1
        windows[f"x{at}"] = Window(f"y{at}", stride[at], -padding[at], reach)
        sizes[f"x{at}"] = size
        sizes[f"y{at}"] = (size + (2 * padding[at] - reach)) // stride[at] + 1
    padded = tuple(IfSplit(f"y{at}", 0, each) for at, each in enumerate(padding))
    return build_rule(
        call,
        [(*lead, ("c",), ("x0",), ("x1",))],
        [(*lead, ("c", "k"), ("y0", "y1"))],
        sizes=sizes,
        whole=["k"],
        linear=FIRST,
        windows=windows,
        local={"padding": Sizes(padded)},
        work=0,
    )


RULES: Table = {
    WINDOW: cut_out,
    **same(copies("slice.Tensor"), slice_),
    **same(copies("unfold.default"), unfold),
    "aten.narrow_copy.default": narrow_copy,
    "aten.cat.default": cat,
    "aten.constant_pad_nd.default": constant_pad,
    **{
        f"aten.{kind}_pad{count}d.default": continued_pad(fill)
        for kind, fill in (("reflection", "reflect"), ("replication", "edge"))
        for count in (1, 2, 3)
    },
    "aten.flip.default": flip,
    "aten.roll.default": roll,
    "aten.rot90.default": rotate,
    "aten.im2col.default": im2col,
}
