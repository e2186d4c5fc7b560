"""Ops that put a part into a tensor: the gradients of slice and select, and their scatters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.facts import larger, smaller
from autopar.ir.ops.shape.sizes import (
    common_block,
    index_of,
    open_size,
    start_of,
)
from autopar.ir.ops.table import ZERO_FILLED, Table, axis, chosen, factors, operand_dims
from autopar.ir.rules.local_arg import IfSplit, LocalArg, Offset, Size, Sizes
from autopar.ir.rules.rule import Dims, OpCall, Rule, Shard, build_rule
from autopar.ir.rules.window import Fill, Window


def select_backward(call: OpCall) -> Rule | None:
    """aten.select_backward: zeros but for one entry of `dim`, which one of its shards has."""
    shape = call.results[0].shape
    at = axis(call, len(shape))
    dims = factors("i", len(shape))
    return build_rule(
        call,
        [dims[:at] + dims[at + 1 :]],
        [dims],
        local={"input_sizes": Sizes(dims)},
        **_entry(call, "autopar.select_backward", at, shape[at]),
        linear=ZERO_FILLED,
        work=0,
    )


def select_scatter(call: OpCall) -> Rule | None:
    """aten.select_scatter: `src` replaces an entry of `dim`, which one of its shards has."""
    shape = call.operands[0].shape
    at = axis(call, len(shape))
    dims = factors("i", len(shape))
    return build_rule(
        call,
        operand_dims(call, {"self": dims, "src": dims[:at] + dims[at + 1 :]}),
        [dims],
        linear=chosen(0, 1),
        work=0,
        **_entry(call, "autopar.select_scatter", at, shape[at]),
    )


def _entry(call: OpCall, kind: str, at: int, size: IntExpr) -> dict[str, Any]:
    """Returns how a shard of dimension `at` is computed; it isn't split if `index` isn't known."""
    index = index_of(call, size)
    if index is None:
        return {"whole": (f"i{at}",)}
    return {"indexed": {f"i{at}": Shard(kind, {"index": index})}}


def slice_backward(call: OpCall) -> Rule | None:
    """aten.slice_backward: a slice of `dim`, with zeros around it."""
    found = _slice(call, call.results[0].shape, call.operands[0].shape)
    local: dict[str, LocalArg] = {"input_sizes": Sizes(found.whole)}
    if found.is_part and found.start is not None:
        local["start"] = IfSplit("s", 0, found.units(found.start))
        held = Size(("s", *found.unit)) if found.step == 1 else found.units(found.stop)
        local["end"] = IfSplit("s", held, found.units(found.stop))
    return build_rule(
        call,
        [found.part],
        [found.whole],
        sizes=found.sizes,
        whole=found.fixed,
        windows=found.windows(0),
        local=local,
        linear=ZERO_FILLED,
        work=0,
    )


def slice_scatter(call: OpCall) -> Rule | None:
    """aten.slice_scatter: `src` replaces a slice of `dim`. A part takes what lies in its block."""
    shape, source = (operand.shape for operand in call.operands)
    found = _slice(call, shape, source)
    local: dict[str, LocalArg] = {}
    if found.is_part and found.start is not None:
        for name, at in (("start", found.start), ("end", found.stop)):
            inside = Offset("s", at, -1, least=0, unit=found.unit)
            local[name] = IfSplit("s", inside, found.units(at))
    return build_rule(
        call,
        operand_dims(call, {"self": found.whole, "src": found.part}),
        [found.whole],
        sizes=found.sizes,
        whole=found.fixed,
        windows=found.windows("none"),
        local=local,
        linear=chosen(0, 1),
        work=0,
    )


@dataclass(frozen=True)
class _Slice:
    """A slice and what it is a slice of, which consist of blocks: `(r e)` of `(s e)`.

    Attributes:
        part, whole: The factors of either.
        sizes: Of the factors that aren't alike in both.
        start, stop: Blocks where it begins and ends; no start if it isn't known which end an open
            one is counted from.
        step: From one of its elements to the next.
    """

    part: Dims
    whole: Dims
    sizes: dict[str, IntExpr]
    start: IntExpr | None
    stop: IntExpr
    step: int

    @property
    def is_part(self) -> bool:
        """Whether it isn't everything."""
        return bool(self.sizes)

    @property
    def unit(self) -> tuple[str, ...]:
        """The factor of a block's elements, if a block has several."""
        return ("e",) if "e" in self.sizes else ()

    @property
    def fixed(self) -> tuple[str, ...]:
        """The factors that must not be split: a slice with a step, or of an unknown start."""
        if self.step != 1:
            return tuple(self.sizes)
        return ("r", "s") if self.is_part and not self.windows(0) else ()

    def units(self, blocks: IntExpr) -> LocalArg | int:
        """Returns how many elements so many blocks have on a shard."""
        return Size(self.unit, blocks) if self.unit else open_size(blocks)

    def windows(self, fill: Fill) -> dict[str, Window]:
        """Returns how the slice is read by parts of the whole."""
        if not self.is_part or self.step != 1 or self.start is None:
            return {}
        return {"r": Window("s", 1, self.start * -1, 1, fill)}


def _slice(call: OpCall, shape: tuple[IntExpr, ...], part: tuple[IntExpr, ...]) -> _Slice:
    """Returns the slice along `dim` of a tensor of this shape that has the shape `part`."""
    at = axis(call, len(shape))
    dims = factors("i", len(shape))
    size, count = shape[at], part[at]
    step = call.integer("step", 1)
    if size == count:
        return _Slice(dims, dims, {}, 0, 0, 1)
    start = start_of(call, size)
    if start is None:
        alone: dict[str, IntExpr] = {"r": count, "s": size}
        return _Slice(_with(dims, at, "r"), _with(dims, at, "s"), alone, None, 0, step)
    start = smaller(size, start)
    block = common_block((start, count, size)) if step == 1 else 1
    names = ("e",) if block != 1 else ()
    sizes = {"r": count // block, "s": size // block, **dict.fromkeys(names, block)}
    # An open slice may be empty.
    stop = larger(start, start + ((count - 1) * step + 1))
    return _Slice(
        _with(dims, at, "r", *names),
        _with(dims, at, "s", *names),
        sizes,
        start // block,
        stop // block,
        step,
    )


def _with(dims: Dims, at: int, *names: str) -> Dims:
    return (*dims[:at], names, *dims[at + 1 :])


RULES: Table = {
    "aten.select_backward.default": select_backward,
    "aten.select_scatter.default": select_scatter,
    "aten.slice_backward.default": slice_backward,
    "aten.slice_scatter.default": slice_scatter,
}
