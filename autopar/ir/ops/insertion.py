"""Ops that put a part into a tensor: the gradients of slice and select, and their scatters."""

from __future__ import annotations

import math

from autopar.ir.ops.table import ZERO_FILLED, Table, axis, factors, operand_dims, pending
from autopar.ir.rule import (
    ALL_MONOIDS,
    Dims,
    LocalArg,
    OpCall,
    Rule,
    Shard,
    Size,
    Sizes,
    build_rule,
)

TOGETHER = (pending(0, 1, monoids=ALL_MONOIDS),)
"""Of two operands, some elements of one and the others of the other."""


def select_backward(call: OpCall) -> Rule | None:
    """aten.select_backward: zeros but for one entry of `dim`, which one of its shards has."""
    shape = call.results[0].shape
    at = axis(call, len(shape))
    dims = factors("i", len(shape))
    return build_rule(
        call,
        [dims[:at] + dims[at + 1 :]],
        [dims],
        indexed={f"i{at}": Shard("autopar.select_backward", _entry(call, shape[at]))},
        local={"input_sizes": Sizes(dims)},
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
        indexed={f"i{at}": Shard("autopar.select_scatter", _entry(call, shape[at]))},
        linear=TOGETHER,
        work=0,
    )


def _entry(call: OpCall, size: int) -> dict[str, int]:
    """Returns the argument `index`, counted from the front of `size` entries."""
    index = call.integer("index", 0)
    return {"index": index + size if index < 0 else index}


def slice_backward(call: OpCall) -> Rule | None:
    """aten.slice_backward: a slice of `dim`, with zeros around it."""
    shape = call.results[0].shape
    part, whole, sizes, local = _slice(call, shape, call.operands[0].shape)
    return build_rule(
        call,
        [part],
        [whole],
        sizes=sizes,
        whole=_bounds(sizes),
        local={**local, "input_sizes": Sizes(whole)},
        linear=ZERO_FILLED,
        work=0,
    )


def slice_scatter(call: OpCall) -> Rule | None:
    """aten.slice_scatter: `src` replaces a slice of `dim`."""
    shape, source = (operand.shape for operand in call.operands)
    part, whole, sizes, local = _slice(call, shape, source)
    return build_rule(
        call,
        operand_dims(call, {"self": whole, "src": part}),
        [whole],
        sizes=sizes,
        whole=_bounds(sizes),
        local=local,
        linear=TOGETHER,
        work=0,
    )


def _bounds(sizes: dict[str, int]) -> list[str]:
    return [name for name in sizes if name != "e"]


def _slice(
    call: OpCall, shape: tuple[int, ...], part: tuple[int, ...]
) -> tuple[Dims, Dims, dict[str, int], dict[str, LocalArg]]:
    """Returns the factors of a slice and of what it is a slice of, and what splits change.

    Where both consist of blocks of `e` elements, `e` may be split; see `layout.blocks`.

    Returns:
        The factors of either, the sizes of those that aren't alike in both, local arguments.
    """
    at = axis(call, len(shape))
    dims = factors("i", len(shape))
    size, count = shape[at], part[at]
    if size == count:
        return dims, dims, {}, {}
    start = call.integer("start", 0) if call.args.get("start") is not None else 0
    start = min(max(0, start + size if start < 0 else start), size)
    block = math.gcd(start, count, size) if call.integer("step", 1) == 1 else 1
    if block <= 1:
        sizes = {"r": count, "s": size}
        return _with(dims, at, "r"), _with(dims, at, "s"), sizes, {}
    local: dict[str, LocalArg] = {
        "start": Size(("e",), start // block),
        "end": Size(("e",), (start + count) // block),
    }
    sizes = {"r": count // block, "s": size // block, "e": block}
    return _with(dims, at, "r", "e"), _with(dims, at, "s", "e"), sizes, local


def _with(dims: Dims, at: int, *names: str) -> Dims:
    return (*dims[:at], names, *dims[at + 1 :])


RULES: Table = {
    "aten.select_backward.default": select_backward,
    "aten.select_scatter.default": select_scatter,
    "aten.slice_backward.default": slice_backward,
    "aten.slice_scatter.default": slice_scatter,
}
