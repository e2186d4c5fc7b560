"""Windows of tensors: taken from a whole dimension, or out of the blocks of several members."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autopar.ir.rules.window import Fill, Piece, pieces
from autopar.runtime.collectives.monoids import identity


def window(self: Tensor, dim: int, low: int, high: int, fill: Fill) -> Tensor:
    """Returns the elements with indices [low, high) of a dimension, some of which may lie outside.

    Args:
        self: Holds all of the dimension.
        dim: The dimension.
        low, high: The first index, and the one behind the last.
        fill: What stands outside (see `autopar.ir.rules.window.Window`).

    Returns:
        They, in memory of their own.
    """
    found = list(pieces(low, high, self.shape[dim], fill))
    inside = [at for at, piece in enumerate(found) if piece.step == 1]
    if len(inside) == 1 and all(piece.step in (1, None) for piece in found):
        # In one op, so that there is nothing else beside it.
        held = self.narrow(dim, found[inside[0]].start, found[inside[0]].length)
        if len(found) == 1:
            return held.clone(memory_format=torch.contiguous_format)
        sides = found[: inside[0]], found[inside[0] + 1 :]
        around = [sum(piece.length for piece in side) for side in sides]
        pad = [*(0, 0) * (self.dim() - 1 - dim), *around]
        return torch.constant_pad_nd(held, pad, fill_value(fill, self.dtype))
    rows = self.movedim(dim, 0)
    parts = [read_piece(rows, piece, 0, fill).movedim(0, dim) for piece in found]
    if not parts:
        return self.narrow(dim, 0, 0).clone()
    return torch.cat(parts, dim)


def read_piece(rows: Tensor, piece: Piece, first: int, fill: Fill) -> Tensor:
    """Returns a piece of a window along dimension 0, of a block that begins with row `first`."""
    start, length, step = piece
    if step is None:
        return rows.new_full((length, *rows.shape[1:]), fill_value(fill, rows.dtype))
    if step == 0:
        return rows.narrow(0, start - first, 1).expand(length, *rows.shape[1:])
    low, _ = piece.extent
    found = rows.narrow(0, low - first, length)
    return found if step == 1 else found.flip(0)


def joined(rows: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Returns parts one after another along dimension 0; none if there are none."""
    if not parts:
        return rows.new_empty((0, *rows.shape[1:]))
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def fill_value(fill: Fill, dtype: torch.dtype) -> bool | int | float:
    """Returns the element that stands outside of a dimension."""
    if isinstance(fill, str):
        return identity("max", dtype)
    return fill


def max_pool_with_indices(
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    starts: Sequence[int],
    plane: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Max pooling of a part of a plane, with indices that count the elements of the whole.

    Args:
        self: The part; its last dimensions are those of the plane.
        kernel_size, stride, padding, dilation, ceil_mode: As of aten.max_pool2d_with_indices.
        starts: Where the part begins, per dimension.
        plane: Sizes of the whole plane.
    """
    pool = getattr(torch.ops.aten, f"max_pool{len(plane)}d_with_indices")
    values, rest = pool(self, kernel_size, stride, padding, dilation, ceil_mode)
    if not any(starts[1:]) and tuple(self.shape[-len(plane) :][1:]) == tuple(plane[1:]):
        return values, _of_rows(rest, starts[0], (stride or kernel_size)[0], dilation[0], plane)
    whole, scale = torch.zeros_like(rest), 1
    for dim in reversed(range(len(plane))):
        local = self.shape[dim - len(plane)]
        # Where all of a window is as low as the padding, the padding may have been taken.
        at = (rest % local + starts[dim]).clamp(0, plane[dim] - 1)
        rest, whole = rest // local, whole + at * scale
        scale *= plane[dim]
    return values, whole


def _of_rows(
    indices: Tensor, start: int, stride: int, dilation: int, plane: Sequence[int]
) -> Tensor:
    """Returns indices in some rows of a plane as those in the plane, written over the former.

    Args:
        indices: Of each output.
        start: The first row.
        stride: From one row of outputs to the next, in rows of the plane.
        dilation: From one row of a window to the next.
        plane: Sizes of the plane.
    """
    row = math.prod(plane[1:])
    indices.add_(start * row)
    if start < 0:
        # Where all of a window is as low as the padding, that is taken. Only its first rows may be.
        first = indices.narrow(-len(plane), 0, min(-(start // stride), indices.shape[-len(plane)]))
        inside = first.div(row, rounding_mode="floor") % dilation * row + first % row
        first.copy_(torch.where(first < 0, inside, first))
    return indices


def max_pool_backward(
    grad_output: Tensor,
    indices: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    starts: Sequence[int],
    plane: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """The gradient of a part of a plane that was pooled.

    Args:
        grad_output: The gradient of those outputs that may belong to the part.
        indices: Where each output came from, in the whole plane.
        kernel_size, stride, padding, dilation: Of the pooling; they say which outputs these are.
        starts, sizes: Where the part begins and how large it is, per dimension.
        plane: Sizes of the whole plane.
    """
    lead = grad_output.shape[: -len(plane)]
    rest, at, scale = indices, torch.zeros_like(indices), 1
    inside = torch.ones_like(indices, dtype=torch.bool)
    for dim in reversed(range(len(plane))):
        local = rest % plane[dim] - starts[dim]
        inside = inside & (local >= 0) & (local < sizes[dim])
        rest, at = rest // plane[dim], at + local * scale
        scale *= sizes[dim]
    gradient = torch.where(inside, grad_output, torch.zeros_like(grad_output))
    at = torch.where(inside, at, torch.zeros_like(at))
    total = grad_output.new_zeros((*lead, scale))
    return total.scatter_add(-1, at.reshape(*lead, -1), gradient.reshape(*lead, -1)).reshape(
        *lead, *sizes
    )


def resize(self: Tensor, kind: str, size: Sequence[int], margin: Sequence[int]) -> Tensor:
    """Interpolates to `size` and a margin on all sides, and leaves the margin out.

    Args:
        self: An image, in the last dimensions.
        kind: The op of `aten` that interpolates.
        size: What remains of these dimensions.
        margin: The pixels to leave out on either side of each.
    """
    wide = [count + 2 * beside for count, beside in zip(size, margin, strict=True)]
    found: Tensor = getattr(torch.ops.aten, kind).default(self, wide, False)
    for at, (count, beside) in enumerate(zip(size, margin, strict=True), -len(size)):
        found = found.narrow(at, beside, count)
    return found
