"""Shapes and element order: reshape, transpose, slice, pad, join and split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.lower.open_sizes import is_static
from autopar.frontend.onnx.ops.shape.padding import pad_axis
from autopar.frontend.onnx.trace.node import Array, Node, Refused, Undecided
from autopar.frontend.onnx.trace.values import Translation
from autopar.ir.expr.expression import UNBOUNDED

MOST_OPERANDS = 1024
"""Operands of one op at most: passes compare the operands of an op with one another."""


def as_ints(array: Array) -> list[int]:
    """Returns the content of an integer input as a flat list, in which open sizes are symbols."""
    items = array.reshape(-1).tolist()
    # Typed as what it stands for: a symbol computes as a number does.
    return [cast(int, item) if isinstance(item, torch.SymInt) else int(item) for item in items]


def larger(one: int, other: int) -> int:
    """Returns the larger of two sizes, of which some may be open."""
    return cast(int, torch.sym_max(one, other))  # type: ignore[no-untyped-call]


def smaller(one: int, other: int) -> int:
    """Returns the smaller of two sizes, of which some may be open."""
    return cast(int, torch.sym_min(one, other))  # type: ignore[no-untyped-call]


def is_shape(x: torch.Tensor, shape: Sequence[int]) -> bool:
    """Returns whether a tensor has a shape, whatever the open sizes are."""
    pairs = zip(x.shape, shape, strict=False)
    return x.ndim == len(shape) and all(is_sure(size == other) for size, other in pairs)


def is_one(size: int) -> bool:
    """Returns whether a size is 1.

    Raises:
        Refused: If it is open, and may be 1 or not.
    """
    if not is_sure(size == 1) and not is_sure(size != 1):
        raise Undecided(f"whether {size} is 1 decides what it does", size)
    return is_sure(size == 1)


def take_for(size: int, number: int) -> None:
    """Takes for granted that a size is a number, to which one that is open is narrowed."""
    torch._check(size == number)  # type: ignore[no-untyped-call]


def as_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Returns axes counted from the front.

    Raises:
        Refused: If there is no such axis, or one is there twice.
    """
    result = [axis + rank if axis < 0 else axis for axis in axes]
    if any(not 0 <= axis < rank for axis in result) or len(set(result)) != len(result):
        raise Refused(f"axes {list(axes)} don't fit {rank} dimensions")
    return result


def _axes(node: Node, given: Array | None) -> list[int] | None:
    """Returns the axes of a node: an attribute before opset 13, an input since."""
    return as_ints(given) if given is not None else node.integers("axes")


def _identity(node: Node, x: torch.Tensor, *_: object) -> torch.Tensor:
    return x


def _reshape(node: Node, x: torch.Tensor, shape: Array) -> torch.Tensor:
    wanted = as_ints(shape)
    if not node.flag("allowzero"):
        if any(is_sure(size == 0) and at >= x.ndim for at, size in enumerate(wanted)):
            raise Refused(f"shape {wanted} copies a dimension that {list(x.shape)} lacks")
        wanted = [x.shape[at] if is_sure(size == 0) else size for at, size in enumerate(wanted)]
    inferred = [at for at, size in enumerate(wanted) if is_sure(size == -1)]
    if len(inferred) == 1:
        wanted[inferred[0]] = _rest(x, wanted, inferred[0])
    elif wanted and all(isinstance(size, int) and size > 0 for size in wanted):
        wanted[0] = _first(x, wanted)
    return x if is_shape(x, wanted) else x.reshape(wanted)


def _first(x: torch.Tensor, shape: Sequence[int]) -> int:
    """Returns the first size of a shape of numbers, as an expression of a tensor's open sizes.

    They must be such that there are as many elements, and torch reshapes no open sizes to numbers.
    """
    if is_static(x):
        return shape[0]
    found = _rest(x, shape, 0)
    torch._check(found == shape[0])  # type: ignore[no-untyped-call]
    return found


def _rest(x: torch.Tensor, shape: Sequence[int], missing: int) -> int:
    """Returns the size that a shape lacks for as many elements as a tensor has.

    Raises:
        Refused: If there is none, or it isn't the same expression of open sizes for all.
    """
    given, wanted = _without_common(x.shape, [*shape[:missing], *shape[missing + 1 :]])
    count, known = math.prod(given), math.prod(wanted)
    rest = 0 if is_sure(known == 0) else count // known
    if is_sure(known == 0) or is_sure(rest * known != count):
        raise Refused(f"can't reshape {list(x.shape)} to {list(shape)}")
    if not is_sure(rest * known == count):
        # Sizes become multiples of what is known.
        torch._check(rest * known == count)  # type: ignore[no-untyped-call]
    return rest


def _without_common(one: Sequence[int], other: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns two lists of sizes without those that are in both.

    Sizes of 0 too: what is left is as it is for batches of other sizes.
    """
    left, rest = list(one), []
    for size in other:
        same = (at for at, each in enumerate(left) if is_sure(each == size))
        at = next(same, None)
        if at is None:
            rest.append(size)
        else:
            del left[at]
    return left, rest


def _flatten(node: Node, x: torch.Tensor) -> torch.Tensor:
    axis = node.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    rows = math.prod(x.shape[:axis])
    return x.reshape(rows, math.prod(x.shape[axis:]))


def _squeeze(node: Node, x: torch.Tensor, axes: Array | None = None) -> torch.Tensor:
    given = _axes(node, axes)
    if given is None:
        gone = [at for at, size in enumerate(x.shape) if is_one(size)]
    else:
        gone = as_axes(given, x.ndim)
        if any(is_sure(x.shape[axis] != 1) for axis in gone):
            raise Refused(f"axes {given} of shape {list(x.shape)} aren't all of size 1")
        for axis in gone:
            take_for(x.shape[axis], 1)
    return x.reshape([size for at, size in enumerate(x.shape) if at not in gone])


def _unsqueeze(node: Node, x: torch.Tensor, axes: Array | None = None) -> torch.Tensor:
    given = _axes(node, axes) or []
    rank = x.ndim + len(given)
    new = as_axes(given, rank)
    sizes = iter(x.shape)
    return x.reshape([1 if at in new else next(sizes) for at in range(rank)])


def _transpose(node: Node, x: torch.Tensor) -> torch.Tensor:
    order = node.integers("perm")
    order = list(reversed(range(x.ndim))) if order is None else order
    return x if order == list(range(x.ndim)) else x.permute(as_axes(order, x.ndim))


def _concat(node: Node, *tensors: torch.Tensor) -> torch.Tensor:
    axis = as_axes([node.integer("axis", 0)], tensors[0].ndim)[0]
    while len(tensors) > MOST_OPERANDS:
        groups = range(0, len(tensors), MOST_OPERANDS)
        tensors = tuple(torch.cat(tensors[at : at + MOST_OPERANDS], axis) for at in groups)
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)


def _split(node: Node, x: torch.Tensor, sizes: Array | None = None) -> tuple[torch.Tensor, ...]:
    axis = as_axes([node.integer("axis", 0)], x.ndim)[0]
    given = as_ints(sizes) if sizes is not None else node.integers("split")
    if given is None:
        parts = node.integer("num_outputs", len(node.proto.output))
        if parts <= 0:
            raise Refused(f"it splits into {parts} parts")
        return _equal_parts(x, axis, parts)
    return tuple(torch.split(x, given, axis))


def _equal_parts(x: torch.Tensor, axis: int, parts: int) -> tuple[torch.Tensor, ...]:
    """Cuts a dimension into so many parts, of which the last ones may be smaller, or empty."""
    size = x.shape[axis]
    block = (size + parts - 1) // parts
    ends = [smaller(block * at, size) for at in range(parts)] + [size]
    if all(isinstance(end, int) for end in ends):
        return tuple(torch.split(x, [end - start for start, end in pairwise(ends)], axis))
    return tuple(x.narrow(axis, start, end - start) for start, end in pairwise(ends))


def _expand(node: Node, x: torch.Tensor, shape: Array) -> torch.Tensor:
    wanted = as_ints(shape)
    rank = max(x.ndim, len(wanted))
    have = [*[1] * (rank - x.ndim), *x.shape]
    wanted = [*[1] * (rank - len(wanted)), *wanted]
    found = [_broadcast(size, other) for size, other in zip(have, wanted, strict=True)]
    return x if is_shape(x, found) else x.expand(found)


def _broadcast(size: int, other: int) -> int:
    """Returns the size that two dimensions have together.

    Raises:
        Refused: If they don't fit.
    """
    if is_sure(size == other) or is_sure(other == 1):
        return size
    if is_sure(size == 1):
        return other
    if isinstance(size, int) and isinstance(other, int):
        raise Refused(f"sizes {size} and {other} don't broadcast")
    # Taken for granted, which narrows open sizes to those for which it holds.
    torch._check(size == other)
    return other


def _tile(node: Node, x: torch.Tensor, repeats: Array) -> torch.Tensor:
    counts = as_ints(repeats)
    if len(counts) != x.ndim:
        raise Refused(f"{len(counts)} repeats for {x.ndim} dimensions")
    if any(isinstance(count, torch.SymInt) for count in counts):
        return _tile_open(x, counts)
    return x if all(count == 1 for count in counts) else x.repeat(counts)


def _tile_open(x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Tiles by counts that are open: torch asks whether one is 0 or 1."""
    pairs = [each for pair in zip(counts, x.shape, strict=True) for each in pair]
    single = [each for size in x.shape for each in (1, size)]
    sizes = [count * size for count, size in zip(counts, x.shape, strict=True)]
    return x.reshape(single).expand(pairs).reshape(sizes)


def _slice(
    node: Node,
    x: torch.Tensor,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> torch.Tensor:
    first, last = as_ints(starts), as_ints(ends)
    along = as_axes(range(len(first)) if axes is None else as_ints(axes), x.ndim)
    strides = [1] * len(first) if steps is None else as_ints(steps)
    for axis, start, end, step in zip(along, first, last, strides, strict=True):
        if step == 0:
            raise Refused("a step of 0")
        x = _slice_axis(x, axis, slice(start, end, step))
    return x


def _slice_axis(x: torch.Tensor, axis: int, part: slice) -> torch.Tensor:
    # ONNX clamps bounds as Python does, but for the end of a backward slice: there, a large
    # negative number means "the first element included".
    if any(isinstance(each, torch.SymInt) for each in (x.shape[axis], part.start, part.stop)):
        return _slice_open(x, axis, part)
    start, stop, step = part.indices(x.shape[axis])
    taken = range(start, stop, step)
    if len(taken) == x.shape[axis] and step == 1:
        return x
    if not taken:
        return x.narrow(axis, 0, 0)
    if step > 0:
        index = [slice(None)] * axis + [slice(start, taken[-1] + 1, step)]
        return x[tuple(index)]
    index = [slice(None)] * axis + [slice(taken[-1], start + 1, -step)]
    return x[tuple(index)].flip(axis)


def _slice_open(x: torch.Tensor, axis: int, part: slice) -> torch.Tensor:
    """Slices where the size, or a bound, is open."""
    size, step = x.shape[axis], part.step
    if step < 0:
        return _slice_open(x.flip(axis), axis, slice(-1 - part.start, -1 - part.stop, -step))
    first, last = (_clamped(bound, size) for bound in (part.start, part.stop))
    if is_sure(last <= first):
        last = first
    elif not is_sure(first <= last) and not _is_ordered(part, last is size):
        last = larger(first, last)
    length = -(-(last - first) // step)
    if step == 1:
        return x if is_sure(length == size) else x.narrow(axis, first, length)
    index = [slice(None)] * axis + [slice(first, last, step)]
    return x[tuple(index)]


def _is_ordered(part: slice, to_the_end: bool) -> bool:
    """Returns whether the bounds of a slice, once they are within the dimension, are in order."""
    ordered = is_sure(part.start <= part.stop)
    same_end = is_sure(part.start >= 0) or is_sure(part.stop < 0)
    return to_the_end or (ordered and same_end)


def _clamped(bound: int, size: int) -> int:
    """Returns a bound of a slice as one within a dimension, counted from its start."""
    if is_sure(bound < 0):
        return 0 if is_sure(bound <= -UNBOUNDED) else larger(bound + size, 0)
    if is_sure(bound <= size):
        return bound
    return size if is_sure(bound >= size) or is_sure(bound >= UNBOUNDED) else smaller(bound, size)


def _pad(
    node: Node,
    x: torch.Tensor,
    pads: Array | None = None,
    value: torch.Tensor | None = None,
    axes: Array | None = None,
) -> torch.Tensor:
    amounts = as_ints(pads) if pads is not None else node.integers("pads") or []
    along = as_axes(as_ints(axes), x.ndim) if axes is not None else list(range(x.ndim))
    if len(amounts) != 2 * len(along):
        raise Refused(f"{len(amounts)} pads for {len(along)} axes")
    mode = node.text("mode", "constant")
    before, after = amounts[: len(along)], amounts[len(along) :]
    per_axis = dict(zip(along, zip(before, after, strict=True), strict=True))
    if mode == "constant":
        flat = [n for axis in reversed(range(x.ndim)) for n in per_axis.get(axis, (0, 0))]
        return _pad_value(node, x, flat, value)
    for axis, (left, right) in per_axis.items():
        if not (is_sure(left == 0) and is_sure(right == 0)):
            x = pad_axis(x, axis, left, right, mode)
    return x


def _pad_value(
    node: Node, x: torch.Tensor, flat: list[int], value: torch.Tensor | None
) -> torch.Tensor:
    """Pads with the value that the node names: a known number, or one that is computed."""
    if value is None or not value.numel():
        return _pad_constant(x, flat, node.number("value", 0.0))
    known = node.content(2)
    if known is not None:
        return _pad_constant(x, flat, known.item())
    inside = F.pad(torch.ones(x.shape, dtype=torch.bool), flat, value=False)
    return torch.where(inside, _pad_constant(x, flat, 0), value.reshape(()))


def _pad_constant(x: torch.Tensor, flat: list[int], fill: object) -> torch.Tensor:
    if all(is_sure(count == 0) for count in flat):
        return x
    if x.dtype == torch.bool:
        return F.pad(x.to(torch.uint8), flat, value=float(bool(fill))).to(torch.bool)
    number = fill if isinstance(fill, (int, float)) else 0
    return F.pad(x, flat, value=number if x.dtype.is_floating_point else int(number))


def _depth_to_space(node: Node, x: torch.Tensor) -> torch.Tensor:
    block = node.integer("blocksize")
    n, c, h, w = x.shape
    if block <= 0 or c % (block * block):
        raise Refused(f"{c} channels aren't divisible by blocks of {block} x {block}")
    depth = c // (block * block)
    if node.text("mode", "DCR") == "DCR":
        y = x.reshape(n, block, block, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, depth, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, depth, h * block, w * block)


def _space_to_depth(node: Node, x: torch.Tensor) -> torch.Tensor:
    block = node.integer("blocksize")
    n, c, h, w = x.shape
    if block <= 0 or h % block or w % block:
        raise Refused(f"{h} x {w} isn't divisible by blocks of {block} x {block}")
    order = (0, 3, 5, 1, 2, 4) if node.text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = x.reshape(n, c, h // block, block, w // block, block).permute(order)
    return y.reshape(n, c * block * block, h // block, w // block)


def _triangle(node: Node, x: torch.Tensor, k: Array | None = None) -> torch.Tensor:
    diagonal = int(k.item()) if k is not None else 0
    function = torch.triu if node.flag("upper", True) else torch.tril
    return function(x, diagonal)


def _reverse_sequence(node: Node, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    time, batch = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise Refused(f"time axis {time} and batch axis {batch} aren't 0 and 1")
    y = x.transpose(0, 1) if time == 0 else x
    at = torch.arange(y.shape[1])
    limit = lengths.to(torch.int64).reshape(-1, 1)
    index = torch.where(at < limit, limit - 1 - at, at)
    index = index.reshape(*index.shape, *[1] * (y.ndim - 2)).expand(y.shape)
    result = torch.gather(y, 1, index)
    return result.transpose(0, 1) if time == 0 else result


TABLE: Mapping[str, Translation] = {
    "Concat": Translation(_concat),
    "DepthToSpace": Translation(_depth_to_space),
    "Expand": Translation(_expand, static=(1,), expands=True),
    "Flatten": Translation(_flatten),
    "Identity": Translation(_identity),
    "Pad": Translation(_pad, static=(1, 3), expands=True),
    "Reshape": Translation(_reshape, static=(1,)),
    "ReverseSequence": Translation(_reverse_sequence),
    "Slice": Translation(_slice, static=(1, 2, 3, 4)),
    "SpaceToDepth": Translation(_space_to_depth),
    "Split": Translation(_split, static=(1,)),
    "Squeeze": Translation(_squeeze, static=(1,)),
    "Tile": Translation(_tile, static=(1,), expands=True),
    "Transpose": Translation(_transpose),
    "Trilu": Translation(_triangle, static=(1,)),
    "Unsqueeze": Translation(_unsqueeze, static=(1,)),
}
