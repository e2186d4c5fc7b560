"""Sketches: a few numbers from which one sees how far two float tensors are apart.

A tensor is cut into blocks, and of each block sums with signs are taken that depend on the place of
an element and look random. The squared difference of two such sums is on average that of the
blocks, summed over their elements (Alon, Matias, Szegedy: The space complexity of approximating
the frequency moments), so rounding gives small ones and other values, or values elsewhere, don't.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SUMS = 8
"""Sums of a block."""

SLACK = 3.0
"""How far an estimate of eight sums may be above what it estimates."""

ULPS = {torch.float64: 16.0, torch.float32: 16.0, torch.float16: 1.0, torch.bfloat16: 1.0}
"""By how many units in the last place elements may be off; of other dtypes, by none."""


@dataclass(frozen=True)
class Sketch:
    """A sketch of a tensor.

    Attributes:
        sums: The sums of each block.
        norm: The Euclidean norm of each block.
        special: Digests of where elements are NaN, and where infinite of either sign.
    """

    sums: list[list[float]]
    norm: list[float]
    special: list[int]


def sketched(parts: Sequence[Tensor], blocks: int) -> Sketch:
    """Returns the sketch of a float tensor.

    Args:
        parts: It, or what was sampled of it.
        blocks: Into how many it is cut.
    """
    flat = torch.cat([part.detach().reshape(-1).to("cpu", torch.float64) for part in parts])
    finite = torch.nan_to_num(flat, 0.0, 0.0, 0.0)
    length = max(1, -(-flat.numel() // blocks))
    hashes = _hashes(flat.numel())
    padded = torch.nn.functional.pad
    rows = padded(finite, (0, -flat.numel() % length)).reshape(-1, length)
    sums = []
    for bit in range(SUMS):
        signs = padded(1.0 - 2.0 * ((hashes >> (16 + bit)) & 1), (0, -flat.numel() % length))
        sums.append((rows * signs.reshape(rows.shape)).sum(1))
    kinds = (flat.isnan(), flat.isposinf(), flat.isneginf())
    special = [int((hashes * kind).sum()) for kind in kinds]
    return Sketch(torch.stack(sums, 1).tolist(), rows.square().sum(1).sqrt().tolist(), special)


def differ_by_rounding(one: Sketch, other: Sketch, dtype: torch.dtype) -> bool:
    """Whether two tensors are apart by no more than rounding.

    Each block may be, by the Euclidean norm, as far as if every element were off by some units in
    the last place.
    """
    if dtype not in ULPS or one.special != other.special or len(one.norm) != len(other.norm):
        return False
    tolerance = SLACK * ULPS[dtype] * torch.finfo(dtype).eps
    least = torch.finfo(dtype).tiny
    return all(
        math.sqrt(sum((x - y) ** 2 for x, y in zip(*sums, strict=True)) / SUMS)
        <= tolerance * max(norms) + least
        for sums, norms in zip(
            zip(one.sums, other.sums, strict=True),
            zip(one.norm, other.norm, strict=True),
            strict=True,
        )
    )


def _hashes(count: int) -> Tensor:
    """Returns numbers that look random, of 63 bits, one for each place."""
    mixed = torch.arange(1, count + 1) * 0x1E3779B97F4A7C15
    for multiplier in (0x3F58476D1CE4E5B9, 0x14D049BB133111EB):
        mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * multiplier
    return mixed & 0x7FFFFFFFFFFFFFFF
