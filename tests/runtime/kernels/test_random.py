"""The random generator: its statistics, and that a block holds what the whole tensor has there.

Seeds are fixed, so a test that passes always passes. The limits are five standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autopar.ir.memory.kernels import DRAWN_AT_ONCE as CHUNK
from autopar.runtime.kernels.random_bits import draw, mix, settle
from autopar.runtime.kernels.random_ops import (
    bernoulli,
    bernoulli_p,
    cauchy,
    dropout,
    exponential,
    geometric,
    multinomial,
    permutation,
    rand,
    randint,
    randn,
)

SIGMAS = 5.0
N = 1 << 16
F32, F64 = torch.float32, torch.float64


def seed_of(number: int) -> Tensor:
    return torch.tensor(number)


def bits_of(number: int = 0, seed: int = 0, count: int = N, first: int = 0) -> Tensor:
    return draw(seed_of(seed), number, (count,), [(first, count, 1)], settle)


def deviation(cells: Tensor, count: int) -> float:
    """Returns how many standard deviations the chi-square of cells is from its mean."""
    found = torch.bincount(cells, minlength=count).to(F64)
    expected = len(cells) / count
    chi_square = float(((found - expected) ** 2 / expected).sum())
    return (chi_square - (count - 1)) / math.sqrt(2 * (count - 1))


def joint(one: Tensor, other: Tensor, bits: int = 6, shift: int = 58) -> Tensor:
    """Returns the cell of each pair, by `bits` bits of either."""
    mask = (1 << bits) - 1
    return ((one >> shift) & mask) * (mask + 1) + ((other >> shift) & mask)


def test_the_sequence_is_that_of_splitmix64() -> None:
    """The first numbers of the state 1234567, as the algorithm's implementations list them."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    golden = 0x9E3779B97F4A7C15
    start = 1234567 * pow(golden, -1, 2**64) % 2**64  # `mix` multiplies it again
    mixed = settle(
        mix(torch.tensor(start - 2**64 if start >= 2**63 else start), torch.arange(1, 4))
    )
    assert [int(number) % 2**64 for number in mixed] == published


@pytest.mark.parametrize("seed", [0, 1, -1, 2**62 + 12345])
def test_each_bit_is_one_half_of_the_time(seed: int) -> None:
    bits = bits_of(number=2, seed=seed)
    ones = torch.stack([((bits >> at) & 1).sum() for at in range(64)]).to(F64)
    assert float((ones / N - 0.5).abs().max()) < SIGMAS * 0.5 / math.sqrt(N)


@pytest.mark.parametrize("shift", [0, 16, 32, 48, 56])
def test_bytes_are_uniform(shift: int) -> None:
    for number in range(4):
        assert abs(deviation((bits_of(number) >> shift) & 255, 256)) < SIGMAS


@pytest.mark.parametrize("shift", [4, 26, 40, 58])
@pytest.mark.parametrize("lag", [1, 2, 3, 8, 64, 1000, 1024])
def test_neighbours_are_independent(lag: int, shift: int) -> None:
    bits = bits_of(number=1, count=4 * N)
    assert abs(deviation(joint(bits[:-lag], bits[lag:], shift=shift), 4096)) < SIGMAS


@pytest.mark.parametrize("difference", [1, 2, 3, 64, 2**31, 2**32, 2**40, -1])
def test_seeds_and_ops_are_independent(difference: int) -> None:
    base = bits_of(number=3, seed=5, count=4 * N)
    of_seed = bits_of(number=3, seed=5 + difference, count=4 * N)
    of_number = bits_of(number=3 + abs(difference), seed=5, count=4 * N)
    for other in (of_seed, of_number):
        for shift in (26, 58):
            assert abs(deviation(joint(base, other, shift=shift), 4096)) < SIGMAS
        assert not bool((base == other).any())


def test_a_bit_of_the_index_flips_half_of_the_bits() -> None:
    base = bits_of()
    for at in [*range(16), 20, 31, 32, 40, 60]:
        flipped = (
            bits_of()[torch.arange(N) ^ (1 << at)] if at < 16 else bits_of(first=1 << at, count=N)
        )
        changed = base ^ flipped
        rates = torch.stack([((changed >> bit) & 1).sum() for bit in range(64)]).to(F64) / N
        # Pairs are counted twice below 2^16.
        assert float((rates - 0.5).abs().max()) < SIGMAS * 0.5 / math.sqrt(N / 2), at


def test_blocks_hold_what_the_whole_has() -> None:
    whole = draw(seed_of(7), 4, (6, 10, 9), None, settle)
    block = draw(seed_of(7), 4, (2, 5, 9), [(3, 2, 90), (4, 5, 9), (0, 9, 1)], settle)
    assert torch.equal(block, whole[3:5, 4:9])
    strided = draw(seed_of(7), 4, (6, 4, 9), [(0, 6, 90), (0, 2, 45), (1, 2, 9), (0, 9, 1)], settle)
    assert torch.equal(strided, whole[:, [1, 2, 6, 7]])


def test_large_tensors_are_drawn_piece_by_piece() -> None:
    for shape in ((3 * CHUNK + 17,), (5, CHUNK // 2 + 3), (2, 3, CHUNK + 5), (CHUNK, 2, 3)):
        count = math.prod(shape)
        flat = torch.cat([bits_of(9, 1, min(1000, count - at), at) for at in range(0, count, 1000)])
        assert torch.equal(draw(seed_of(1), 9, shape, None, settle).reshape(-1), flat), shape
    columns = draw(seed_of(1), 9, (CHUNK, 2), [(0, CHUNK, 5), (3, 2, 1)], settle)
    assert torch.equal(columns, bits_of(9, 1, 5 * CHUNK).reshape(-1, 5)[:, 3:])


@pytest.mark.parametrize("first", [2**31 - 5, 2**32 - 5, 2**33, 2**45 + 1])
def test_indices_beyond_32_bits(first: int) -> None:
    far = bits_of(first=first, count=10)
    parts = [bits_of(first=first + at, count=1) for at in range(10)]
    assert torch.equal(far, torch.cat(parts))
    near = bits_of(first=first % 2**30, count=10)
    assert not bool((far == near).any())


def check_moments(found: Tensor, mean: float, variance: float, kurtosis: float) -> None:
    """Checks mean and variance; `kurtosis` is the fourth central moment over variance squared."""
    wide = found.to(F64)
    count = wide.numel()
    assert abs(float(wide.mean()) - mean) < SIGMAS * math.sqrt(variance / count)
    error = SIGMAS * variance * math.sqrt((kurtosis - 1) / count)
    assert abs(float(((wide - mean) ** 2).mean()) - variance) < error


def check_distribution(found: Tensor, below: Callable[[Tensor], Tensor]) -> None:
    """Checks the largest distance to a distribution function (Kolmogorov and Smirnov)."""
    ordered = found.to(F64).reshape(-1).sort().values
    count = len(ordered)
    steps = torch.arange(count + 1, dtype=F64) / count
    expected = below(ordered)
    distance = torch.maximum((expected - steps[:-1]).abs(), (expected - steps[1:]).abs()).max()
    assert float(distance) * math.sqrt(count) < 2.5  # exceeded once in 140,000 times


@pytest.mark.parametrize("dtype", [F32, F64])
def test_uniform(dtype: torch.dtype) -> None:
    found = rand(seed_of(0), 0, (N,), dtype)
    check_moments(found, 1 / 2, 1 / 12, 1.8)
    check_distribution(found, lambda x: x)
    shifted = rand(seed_of(0), 0, (N,), dtype, low=-1.0, high=3.0)
    check_moments(shifted, 1.0, 16 / 12, 1.8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_uniform_numbers_of_few_digits_stay_below_one(dtype: torch.dtype) -> None:
    found = rand(seed_of(0), 0, (N,), dtype)
    digits = 11 if dtype == torch.float16 else 8
    values = found.unique()
    assert float(values[0]) == 0.0
    assert float(values[-1]) == 1 - 2.0**-digits
    assert len(values) == 2**digits


@pytest.mark.parametrize("dtype", [F32, F64])
def test_normal(dtype: torch.dtype) -> None:
    found = randn(seed_of(0), 0, (4 * N,), dtype)
    check_moments(found, 0.0, 1.0, 3.0)
    check_distribution(found, lambda x: (1 + torch.erf(x / math.sqrt(2))) / 2)
    wide = found.to(F64)
    assert abs(float((wide**3).mean())) < SIGMAS * math.sqrt(15 / (4 * N))
    assert abs(float((wide**4).mean()) - 3) < SIGMAS * math.sqrt(96 / (4 * N))
    assert abs(float((wide[1:] * wide[:-1]).mean())) < SIGMAS / math.sqrt(4 * N)
    assert 3.9 < float(wide.abs().max()) < 6.7


def test_normal_with_parameters() -> None:
    mean, std = torch.tensor([[1.0], [-2.0]]), torch.tensor([0.5, 2.0, 3.0])
    plain = randn(seed_of(0), 0, (2, 3), F32)
    assert torch.equal(randn(seed_of(0), 0, (2, 3), F32, mean, std), plain * std + mean)
    assert torch.equal(randn(seed_of(0), 0, (2, 3), F32, 1.5, 2.0), plain * 2 + 1.5)


def test_exponential() -> None:
    found = exponential(seed_of(0), 0, (N,), F32, 2.0)
    check_moments(found, 0.5, 0.25, 9.0)
    check_distribution(found, lambda x: -torch.expm1(-2 * x))
    assert float(found.min()) > 0


def test_cauchy_and_geometric() -> None:
    check_distribution(
        cauchy(seed_of(0), 0, (N,), F32, 1.0, 2.0),
        lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5,
    )
    trials = geometric(seed_of(0), 0, (N,), 0.25, F32)
    check_moments(trials, 4.0, 12.0, 9 + 0.25**2 / 0.75)
    assert float(trials.min()) == 1
    assert geometric(seed_of(0), 0, (9,), 1.0, F32).tolist() == [1.0] * 9


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-5, 12), (0, 1 << 16), (7, 8)])
def test_integers(low: int, high: int) -> None:
    found = randint(seed_of(0), 0, low, high, (16 * N,), torch.int64)
    assert low <= int(found.min())
    assert int(found.max()) < high
    if high - low > 1:
        assert abs(deviation(found - low, high - low)) < SIGMAS


@pytest.mark.parametrize("count", [(1 << 16) + 1, 3 << 40, 1 << 63])
def test_many_integers(count: int) -> None:
    found = randint(seed_of(0), 0, 0, count, (N,), torch.int64)
    assert int(found.min()) >= 0
    assert abs(deviation((found.to(F64) / count * 64).to(torch.int64), 64)) < SIGMAS


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0])
def test_masks_have_their_rate(p: float) -> None:
    limit = SIGMAS * math.sqrt(p * (1 - p) / N)
    x = torch.full((N,), 2.0)
    kept, mask = dropout(x, seed_of(0), 0, p)
    assert abs(float(mask.to(F64).mean()) - (1 - p)) <= limit
    assert torch.equal(kept, torch.where(mask, 2 / (1 - p) if p < 1 else 0.0, 0.0))
    for found in (
        bernoulli_p(seed_of(0), 0, (N,), p, F32),
        bernoulli(torch.full((N,), p, dtype=F64), seed_of(0), 0),
    ):
        assert abs(float(found.to(F64).mean()) - p) <= limit
        assert set(found.unique().tolist()) <= {0.0, 1.0}


def test_masks_of_two_ops_are_independent() -> None:
    x = torch.ones(N)
    _, one = dropout(x, seed_of(0), 0, 0.1)
    for seed, number in ((0, 1), (1, 0)):
        _, other = dropout(x, seed_of(seed), number, 0.1)
        both = float((~one & ~other).to(F64).mean())
        assert abs(both - 0.01) < SIGMAS * math.sqrt(0.01 * 0.99 / N)


def test_permutation() -> None:
    found = torch.stack([permutation(seed_of(0), at, 8, torch.int32) for at in range(2000)])
    assert torch.equal(found.sort().values, torch.arange(8, dtype=torch.int32).expand(2000, 8))
    for position in range(8):
        assert abs(deviation(found[:, position], 8)) < SIGMAS


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial(replacement: bool) -> None:
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0]).expand(N, 4)
    found = multinomial(weights, seed_of(0), 0, 2, replacement)
    assert found.shape == (N, 2)
    assert not bool((found == 1).any())
    assert bool((found[:, 0] == found[:, 1]).any()) == replacement
    shares = torch.bincount(found[:, 0], minlength=4).to(F64) / N
    expected = torch.tensor([1.0, 0.0, 3.0, 4.0], dtype=F64) / 8
    assert float((shares - expected).abs().max()) < SIGMAS * 0.5 / math.sqrt(N)


@pytest.mark.slow
def test_compiled_code_draws_the_same() -> None:
    def function(x: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
        grid = [(1, 100, 64), (3, 50, 1)]
        kept, mask = dropout(x, seed, 3, 0.3, grid)
        uniform = rand(seed, 4, (100, 50), F32, grid=grid)
        normal = randn(seed, 5, (100, 50), F32, grid=grid)
        integers = randint(seed, 6, 0, 1 << 40, (100, 50), torch.int64, grid=grid)
        return kept, mask, uniform, integers, normal

    x = torch.ones(100, 50)
    compiled = torch.compile(function, fullgraph=True)(x, seed_of(-9))
    eager = function(x, seed_of(-9))
    for one, other in zip(compiled[:-1], eager[:-1], strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(compiled[-1], eager[-1])
