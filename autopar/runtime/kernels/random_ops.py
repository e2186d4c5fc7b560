"""The kernels of random ops: distributions, made of bits that depend on seed, op and element alone.

All take `seed`, the program's seed, an int64 scalar; `number`, which tells the random ops of a
program apart; and `grid`, which says the elements that a shard holds (see `random_bits.draw`;
without it, all of them). The last bit of a normal number may depend on the device, since that of
its logarithm does; uniform ones, masks and integers are the same bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autopar.runtime.kernels.naming import own
from autopar.runtime.kernels.random_bits import Grid, draw, settle

_DIGITS: Mapping[torch.dtype, int] = {
    torch.float64: 53,
    torch.float32: 24,
    torch.float16: 11,
    torch.bfloat16: 8,
}
"""Bits of a float's significand: a uniform number is a multiple of 2^-digits."""

FEW = 1 << 16
"""Integers up to which 32 bits choose evenly enough: none is 2^-16 likelier than another."""


def rand(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    dtype: torch.dtype,
    low: float = 0.0,
    high: float = 1.0,
    grid: Grid | None = None,
) -> Tensor:
    """Numbers that are uniform between `low` and `high`, which is excluded."""

    def finish(bits: Tensor) -> Tensor:
        found = _uniform(bits, dtype)
        return found if (low, high) == (0.0, 1.0) else found * (high - low) + low

    return draw(seed, number, size, grid, finish)


def randn(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    dtype: torch.dtype,
    mean: Tensor | float = 0.0,
    std: Tensor | float = 1.0,
    grid: Grid | None = None,
) -> Tensor:
    """Normal numbers; `mean` and `std` may be tensors that broadcast to the result."""
    found = draw(seed, number, size, grid, lambda bits: _normal(bits, dtype))
    if isinstance(std, Tensor) or std != 1.0:
        found = found * std
    if isinstance(mean, Tensor) or mean != 0.0:
        found = found + mean
    return found


def randint(
    seed: Tensor,
    number: int,
    low: int,
    high: int,
    size: Sequence[int],
    dtype: torch.dtype,
    grid: Grid | None = None,
) -> Tensor:
    """Integers from `low` to `high`, which is excluded; at most 2^63 of them."""
    return draw(seed, number, size, grid, lambda bits: (_below(bits, high - low) + low).to(dtype))


def bernoulli(self: Tensor, seed: Tensor, number: int, grid: Grid | None = None) -> Tensor:
    """One with a probability of the element of `self`, else zero."""
    chosen = draw(seed, number, self.shape, grid, lambda bits: _uniform(bits, torch.float64))
    return (chosen < self).to(self.dtype)


def bernoulli_p(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    p: float,
    dtype: torch.dtype,
    grid: Grid | None = None,
) -> Tensor:
    """One with a probability of `p`, else zero."""
    return draw(seed, number, size, grid, lambda bits: _is_below(bits, p).to(dtype))


def dropout(
    self: Tensor, seed: Tensor, number: int, p: float, grid: Grid | None = None
) -> tuple[Tensor, Tensor]:
    """Zero with a probability of `p`, the others scaled up; and which elements are kept."""
    mask = draw(seed, number, self.shape, grid, lambda bits: _is_below(bits, 1 - p))
    return self * mask * (1 / (1 - p) if p < 1 else 0.0), mask


def rrelu(
    self: Tensor,
    seed: Tensor,
    number: int,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    grid: Grid | None = None,
) -> tuple[Tensor, Tensor]:
    """A ReLU whose slope for negative numbers is uniform; and the slopes, 1 for positive ones."""
    slopes = rand(seed, number, self.shape, self.dtype, lower, upper, grid)
    slopes = torch.where(self <= 0, slopes, torch.ones_like(self))
    return self * slopes, slopes


def exponential(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    dtype: torch.dtype,
    lambd: float = 1.0,
    grid: Grid | None = None,
) -> Tensor:
    """Exponential numbers of rate `lambd`, above zero."""
    return draw(
        seed, number, size, grid, lambda bits: (-_open(bits, dtype).log() / lambd).to(dtype)
    )


def cauchy(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    dtype: torch.dtype,
    median: float = 0.0,
    sigma: float = 1.0,
    grid: Grid | None = None,
) -> Tensor:
    """Cauchy numbers."""

    def finish(bits: Tensor) -> Tensor:
        return (torch.tan((_open(bits, dtype) - 0.5) * math.pi) * sigma + median).to(dtype)

    return draw(seed, number, size, grid, finish)


def log_normal(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    dtype: torch.dtype,
    mean: float = 1.0,
    std: float = 2.0,
    grid: Grid | None = None,
) -> Tensor:
    """Numbers whose logarithms are normal, with this mean and standard deviation."""
    return randn(seed, number, size, dtype, mean, std, grid).exp()


def geometric(
    seed: Tensor,
    number: int,
    size: Sequence[int],
    p: float,
    dtype: torch.dtype,
    grid: Grid | None = None,
) -> Tensor:
    """How many trials of probability `p` it takes to succeed: 1, 2, ..."""
    scale = -math.inf if p == 1 else math.log1p(-p)

    def finish(bits: Tensor) -> Tensor:
        return (_open(bits, torch.float64).log() / scale).ceil().clamp(min=1).to(dtype)

    return draw(seed, number, size, grid, finish)


def permutation(seed: Tensor, number: int, n: int, dtype: torch.dtype) -> Tensor:
    """The integers below `n` in random order."""
    return draw(seed, number, (n,), None, settle).argsort().to(dtype)


def multinomial(
    self: Tensor,
    seed: Tensor,
    number: int,
    num_samples: int,
    replacement: bool = False,
    grid: Grid | None = None,
) -> Tensor:
    """Indices into each row of `self`, in proportion to its elements.

    With replacement, each is where a uniform number falls in the sums of the row; `grid` is that
    of the result. Without, they are those of the smallest exponential numbers with these rates
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006); `grid` is that
    of `self`.
    """
    weights = self.to(torch.float64)
    if not replacement:
        times = draw(seed, number, self.shape, grid, lambda bits: -_open(bits, torch.float64).log())
        return (weights / times).topk(num_samples, -1).indices
    size = (*self.shape[:-1], num_samples)
    drawn = draw(seed, number, size, grid, lambda bits: _uniform(bits, torch.float64))
    sums = weights.cumsum(-1)
    found = torch.searchsorted(sums, drawn * sums[..., -1:], right=True)
    return found.clamp(max=self.shape[-1] - 1)


def _uniform(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns multiples of 2^-digits from 0 on and below 1, exactly."""
    digits = _DIGITS[dtype]
    if digits > 32:
        bits = settle(bits)
    return (bits >> (64 - digits)).to(dtype) * 2.0**-digits + 0.5


def _open(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns numbers between 0 and 1 that are neither: odd multiples of 2^-digits."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    digits = _DIGITS[wide] - 1
    if digits > 32:
        bits = settle(bits)
    return ((bits >> (64 - digits)).to(wide) + 0.5) * 2.0**-digits + 0.5


def _normal(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns normal numbers (Box and Muller, 1958): half of the bits are the radius'."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    bits = settle(bits)
    # From 2^-32 to 1: small ones, which make large radii, keep all their digits as floats.
    share = ((bits >> 32) + ((1 << 31) + 1)).to(wide) * 2.0**-32
    angle = (bits & 0xFFFFFFFF).to(wide) * (2 * math.pi * 2.0**-32)
    return (torch.sqrt(-2 * share.log()) * angle.cos()).to(dtype)


def _below(bits: Tensor, count: int) -> Tensor:
    if count <= FEW:
        return (((bits >> 32) + (1 << 31)) * count) >> 32
    bits = settle(bits) & ((1 << 63) - 1)
    return bits if count == 1 << 63 else bits % count


def _is_below(bits: Tensor, p: float) -> Tensor:
    """Returns where the bits, as a number below 1, are below `p`."""
    limit = math.floor(p * 2.0**64) - (1 << 63)
    if limit < 1 << 63:
        return bits < limit
    return torch.ones_like(bits, dtype=torch.bool)


RANDOM_OPS = own(
    rand=rand,
    randn=randn,
    randint=randint,
    bernoulli=bernoulli,
    bernoulli_p=bernoulli_p,
    dropout=dropout,
    rrelu=rrelu,
    exponential=exponential,
    cauchy=cauchy,
    log_normal=log_normal,
    geometric=geometric,
    permutation=permutation,
    multinomial=multinomial,
)
"""The function behind each op kind."""
