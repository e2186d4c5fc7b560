"""Windows are in memory of their own, and some rows of a pooling are those of the whole."""

from __future__ import annotations

import random

import pytest
import torch

from autopar.runtime.collectives.windows import max_pool_with_indices, window


@pytest.mark.parametrize("fill", [0, "least", "none", "edge", "wrap"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_window_is_no_view(dim: int, fill: str | int) -> None:
    x = torch.arange(1.0, 6).reshape([5 if at == dim else 1 for at in range(3)])
    for low, high in ((0, 5), (1, 3), (-1, 3), (2, 7), (2, 2)):
        kept, found = x.clone(), window(x, dim, low, high, fill)
        assert found.is_contiguous()
        found.zero_()
        assert torch.equal(x, kept)


@pytest.mark.parametrize("seed", range(40))
def test_rows_of_a_pooling_are_those_of_the_whole(seed: int) -> None:
    chance = random.Random(seed)
    rows, columns = chance.randint(5, 12), chance.randint(5, 9)
    kernel, stride, dilation = (
        chance.choice([2, 3]),
        chance.choice([1, 2, 3]),
        chance.choice([1, 2]),
    )
    padding, up = chance.randint(0, kernel // 2), chance.random() < 0.3
    settings = [kernel, kernel], [stride, stride]
    x = torch.randint(0, 3, (1, 2, rows, columns)).double()
    # Where all of a window is as low as the padding, its first element is taken.
    x[:, :, : chance.randint(0, 4)] = float("-inf")
    pool = torch.ops.aten.max_pool2d_with_indices
    values, indices = pool(x, *settings, [padding, padding], [dilation, dilation], up)
    for first in range(values.shape[2]):
        last = chance.randint(first + 1, values.shape[2])
        low = first * stride - padding
        high = (last - 1) * stride - padding + (kernel - 1) * dilation + 1
        part = window(x, 2, low, high, "least")
        more = [0, padding], [dilation, dilation], up, [low, 0], [rows, columns]
        found = max_pool_with_indices(part, *settings, *more)
        assert torch.equal(found[0], values[:, :, first:last])
        assert torch.equal(found[1], indices[:, :, first:last])
