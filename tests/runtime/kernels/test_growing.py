"""Appending gives what a concatenation does, and copies what is there already only now and then."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autopar.runtime.kernels.growing import append


def drawn(seed: int, length: int, dim: int) -> Tensor:
    shape = [2, 3, 4]
    shape[dim] = length
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_it_is_a_concatenation(dim: int) -> None:
    found = expected = drawn(0, 0, dim)
    for seed, lengths in enumerate([(5,), (1,), (1, 2), (0,), (7,), (1,)], start=1):
        others = [drawn(seed, length, dim) for length in lengths]
        before = expected.clone()
        past = found
        found, expected = append([past, *others], dim), torch.cat([expected, *others], dim)
        assert torch.equal(found, expected)
        assert torch.equal(past, before)


def test_long_chains_copy_seldom() -> None:
    found, moved = drawn(0, 4, 1), 0
    for seed in range(200):
        grown = append([found, drawn(seed, 1, 1)], 1)
        moved += grown.data_ptr() != found.data_ptr()
        found = grown
    assert moved <= 7


def test_what_two_go_on_from_is_copied_for_the_second() -> None:
    first = append([drawn(0, 4, 1), drawn(1, 2, 1)], 1)
    one, other = (append([first, drawn(seed, 1, 1)], 1) for seed in (2, 3))
    assert torch.equal(one, torch.cat([first, drawn(2, 1, 1)], 1))
    assert torch.equal(other, torch.cat([first, drawn(3, 1, 1)], 1))
    assert one.data_ptr() == first.data_ptr() != other.data_ptr()
