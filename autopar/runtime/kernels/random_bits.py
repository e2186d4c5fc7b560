"""Random bits by counter: what an element gets depends on the seed, the op and its index alone.

So a value is the same on every mesh and under every partition: a shard computes the bits of its
own elements, and nobody else's, without communication.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), which can be read at any place of its sequence: a 64-bit counter, times
the golden ratio, goes through the shifts and multipliers of that paper (D. Stafford's variant 13).
Seed and op make the counter's start.

Everything is arithmetic of int64 tensors that wraps around: the same bits on all devices, and under
`torch.compile` part of the kernel that reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autopar.ir.memory.kernels import DRAWN_AT_ONCE

Grid = Sequence[Sequence[int]]
"""Which elements of the whole tensor a block holds: per (sub-)dimension, major to minor, the first
index, how many, and the distance of neighbours in the row-major order of the whole tensor."""

_MASK = (1 << 64) - 1


def _signed(number: int) -> int:
    """Returns the int64 with the 64 low bits of `number`."""
    return ((number + (1 << 63)) & _MASK) - (1 << 63)


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
# A multiplier of Steele and Vigna, "Computationally easy, spectrally good multipliers for
# congruential pseudorandom number generators", 2021. Multiples of it are far apart, and so are the
# counters of different seeds.
_SEED = _signed(0xD1342543DE82EF95)


@dataclass(frozen=True, slots=True)
class _Block:
    """Elements of a tensor by their index in row-major order.

    Attributes:
        first: The smallest index.
        steps: Per dimension, major to minor: how many elements, and their distance.
    """

    first: int
    steps: tuple[tuple[int, int], ...]


def draw(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    grid: Grid | None,
    finish: Callable[[Tensor], Tensor],
) -> Tensor:
    """Returns a block of a random tensor.

    Args:
        seed: The program's seed, an int64 scalar.
        number: Tells the random ops of a program apart.
        size: The shape of the block.
        grid: Which elements it holds; all of a tensor of this size if None.
        finish: Makes numbers of bits, element by element. It gets 64 random bits per element, the
            upper half of them good ones; see `settle`.
    """
    start = (seed * _SEED) ^ _signed(_mix(number + 1))
    grid = _whole(size) if grid is None else grid
    if torch.compiler.is_compiling():
        # Dimension by dimension, as the ops around it are: loops over unlike dimensions don't fuse.
        return finish(_bits(start, _block(grid, merged=False))).reshape(tuple(size))
    block = _block(grid)
    pieces = _pieces(block) if seed.device.type == "cpu" else [block]
    drawn = [finish(_bits(start, piece)).reshape(-1) for piece in pieces]
    return (drawn[0] if len(drawn) == 1 else torch.cat(drawn)).reshape(tuple(size))


def stream(seed: int, number: int) -> int:
    """Returns 64 bits that depend on the program's seed and an op's number: a generator's seed."""
    return _mix((seed * _SEED ^ _mix(number + 1)) & _MASK)


def settle(bits: Tensor) -> Tensor:
    """Returns bits of which all 64 are good."""
    return bits ^ _shifted(bits, 31)


def _bits(start: Tensor, block: _Block) -> Tensor:
    *outer, (count, stride) = block.steps
    first, device = block.first, start.device
    index = torch.arange(first, first + count * stride, stride, device=device)
    for count, stride in reversed(outer):
        steps = torch.arange(0, count * stride, stride, device=device)
        index = steps.reshape(-1, *(1,) * index.ndim) + index
    return mix(start, index)


def mix(start: Tensor, index: Tensor) -> Tensor:
    """Returns the numbers at these indices of the sequence from `start` on, before `settle`."""
    # Not `start + GOLDEN * index`: inductor computes with the index as a symbol, which overflows.
    bits = index + start
    bits *= _GOLDEN
    bits ^= _shifted(bits, 30)
    bits *= _FIRST
    bits ^= _shifted(bits, 27)
    bits *= _SECOND
    return bits


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Returns the bits shifted to the right, with zeros above, which `>>` fills with the sign."""
    shifted = bits >> count
    shifted &= (1 << (64 - count)) - 1
    return shifted


def _mix(number: int) -> int:
    """Returns the element of SplitMix64 from 0 on at an index: 64 bits."""
    bits = number * _GOLDEN & _MASK
    bits = (bits ^ bits >> 30) * _FIRST & _MASK
    bits = (bits ^ bits >> 27) * _SECOND & _MASK
    return bits ^ bits >> 31


def _whole(size: Sequence[int]) -> Grid:
    return [(0, count, math.prod(size[at + 1 :])) for at, count in enumerate(size)]


def _block(grid: Grid, merged: bool = True) -> _Block:
    """Returns the block of a grid, in at least one dimension; merged, in as few as possible."""
    first = sum(begin * stride for begin, _, stride in grid)
    if not merged:
        kept = tuple((count, max(1, stride)) for _, count, stride in grid)
        return _Block(first, kept or ((1, 1),))
    steps = [(1, 1)]
    for _, count, stride in reversed(grid):
        minor, distance = steps[-1]
        if minor == 1:
            steps[-1] = (count, max(1, stride))
        elif stride == minor * distance:
            steps[-1] = (count * minor, distance)
        elif count != 1:
            steps.append((count, max(1, stride)))
    return _Block(first, tuple(steps[::-1]))


def _pieces(block: _Block) -> Iterator[_Block]:
    """Yields blocks of at most `DRAWN_AT_ONCE` elements that follow each other in a block."""
    minor = math.prod(count for count, _ in block.steps[1:])
    count, stride = block.steps[0]
    if count * minor <= DRAWN_AT_ONCE:
        yield block
        return
    rows = max(1, DRAWN_AT_ONCE // minor)
    for begin in range(0, count, rows):
        first = block.first + begin * stride
        taken = (min(rows, count - begin), stride)
        piece = _Block(first, (taken, *block.steps[1:]))
        if taken[0] == 1 and len(block.steps) > 1:
            yield from _pieces(_Block(first, block.steps[1:]))
        else:
            yield piece
