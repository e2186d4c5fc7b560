"""Strides: how tensors lie in memory, as torch's views and kernels leave them.

Values of a program are contiguous by contract, but what a kernel returns may be a view of its
operand, and lie as that does. Whether a reshape is free or a copy follows from strides, and so does
whether a kernel that wants dense operands copies them first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Shape = tuple[int, ...]
Strides = tuple[int, ...]


def dense(shape: Sequence[int]) -> Strides:
    """Returns the strides of a contiguous tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Strides) -> bool:
    """Returns whether elements lie side by side in row-major order."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return 0 in shape
            step *= size
    return True


def is_packed(shape: Shape, strides: Strides) -> bool:
    """Returns whether elements lie side by side in the order of some permutation of dimensions."""
    step = 1
    pairs = zip(strides, shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != step:
            return False
        step *= size
    return True


def reshaped(shape: Shape, strides: Strides, size: Sequence[int]) -> Strides | None:
    """Returns the strides of a view of other sizes, or None if only a copy has these sizes.

    Dimensions that lie side by side form a chunk, and each chunk is cut anew: the conditions that
    torch documents for `Tensor.view`.
    """
    if 0 in shape:
        return dense(size)
    found: list[int] = []
    at = len(size) - 1
    chunk, base = 1, strides[-1] if strides else 1
    for dim in range(len(shape) - 1, -1, -1):
        chunk *= shape[dim]
        inner = dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != chunk * base)
        if not inner:
            continue
        step = 1
        while at >= 0 and (step < chunk or size[at] == 1):
            found.append(step * base)
            step *= size[at]
            at -= 1
        if step != chunk:
            return None
        if dim:
            chunk, base = 1, strides[dim - 1]
    if not shape:
        return dense(size)
    return tuple(reversed(found)) if at < 0 else None


def expanded(shape: Shape, strides: Strides, size: Sequence[int]) -> Strides:
    """Returns the strides of a tensor whose dimensions of size 1, and new ones, are repeated."""
    new = len(size) - len(shape)
    kept = [
        0 if before == 1 and after != 1 else stride
        for before, after, stride in zip(shape, size[new:], strides, strict=True)
    ]
    return (*(0,) * new, *kept)


def elementwise(shape: Shape, operands: Sequence[tuple[Shape, Strides]]) -> Strides:
    """Returns how a kernel that works element by element lays out its result.

    As operands that are packed in one order; of several orders, as torch's TensorIterator decides:
    dimensions are sorted by the strides of the first operand that tells two of them apart.
    """
    full = [strides for own, strides in operands if own == shape]
    if len(full) == len(operands) and full and all(each == full[0] for each in full):
        return full[0] if is_packed(shape, full[0]) else _ordered(shape, full)
    if all(is_contiguous(own, strides) for own, strides in operands):
        return dense(shape)
    return _ordered(shape, [_stretched(shape, *operand) for operand in operands])


def _stretched(shape: Shape, own: Shape, strides: Strides) -> Strides:
    found = expanded(own, strides, shape)
    return tuple(0 if size == 1 else stride for size, stride in zip(shape, found, strict=True))


def _ordered(shape: Shape, operands: Sequence[Strides]) -> Strides:
    """Returns packed strides, dimensions ordered by those of operands."""
    order = list(range(len(shape) - 1, -1, -1))  # innermost first

    def compare(one: int, other: int) -> int:
        for strides in operands:
            a, b = strides[one], strides[other]
            if a == 0 or b == 0:
                continue
            if a != b:
                return -1 if a < b else 1
            if shape[one] > shape[other]:
                return 1
        return 0

    for at in range(1, len(order)):
        here = at
        for before in range(at - 1, -1, -1):
            found = compare(order[before], order[here])
            if found > 0:
                order[before], order[here] = order[here], order[before]
                here = before
            elif found < 0:
                break
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


class Placed(NamedTuple):
    """A tensor as it lies in memory."""

    shape: Shape
    strides: Strides
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, as if each were stored once."""
        return math.prod(self.shape) * self.itemsize


class Result(NamedTuple):
    """Where a result is.

    Attributes:
        strides: How it lies there.
        operand: The position of the operand whose memory it shares; None if it has its own.
        nbytes: What that takes at least, where it is more than the elements.
    """

    strides: Strides
    operand: int | None = None
    nbytes: int = 0


def extent(
    address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """Returns the addresses of a tensor's first byte and behind its last one.

    Args:
        address: Where its first element is.
        shape, strides: How its elements lie, in elements.
        itemsize: Bytes of an element.
    """
    if 0 in shape:
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return address, address + (reach + 1) * itemsize
