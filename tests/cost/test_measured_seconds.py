"""Predicted seconds of ops that are no products, beside CPU seconds that were measured once.

One core of an AMD EPYC, as that of the profile `cpu`, torch 2.13: the least of four runs, with
memory that had been used before. A figure within ten times is what a roofline can promise: what
this finds is an op whose price forgets what it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.cost import Cluster, evaluate
from autopar.frontend.torch.capture.eager import record

FACTOR = 10


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, *inputs: Tensor) -> Any:
        """Every input is computed, so that it has a gradient."""
        return self.function(*(x + self.one if x.is_floating_point() else x for x in inputs))


def floats(*shape: int) -> Tensor:
    return torch.empty(shape)


def indexes(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64)


def weighted_bags(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")


def resized(mode: str) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=2.0, mode=mode)


def sampled(mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, grid: F.grid_sample(x, grid, mode=mode, align_corners=False)


TABLE = (200_000, 64)
IMAGES = (4, 3, 64, 64)
VOLUMES = (2, 8, 16, 32, 32)

MEASURED: list[tuple[str, float, Callable[..., Any], tuple[Tensor, ...]]] = [
    ("embedding", 0.95e-3, lambda w, i: F.embedding(i, w), (floats(*TABLE), indexes(64, 128))),
    (
        "embedding_dense_backward",
        20.7e-3,
        lambda w, i: F.embedding(i, w),
        (floats(*TABLE), indexes(64, 128)),
    ),
    (
        "_embedding_bag_forward_only",
        0.58e-3,
        weighted_bags,
        (floats(*TABLE), indexes(4096, 20), floats(4096, 20)),
    ),
    (
        "_embedding_bag_backward",
        12.6e-3,
        weighted_bags,
        (floats(*TABLE), indexes(4096, 20), floats(4096, 20)),
    ),
    (
        "_embedding_bag_per_sample_weights_backward",
        17.9e-3,
        weighted_bags,
        (floats(*TABLE), indexes(4096, 20), floats(4096, 20)),
    ),
    ("gather", 2.88e-3, lambda x, i: x.gather(0, i), (floats(20_000, 64), indexes(20_000, 64))),
    ("index", 3.85e-3, lambda x, i: x[i], (floats(*TABLE), indexes(20_000))),
    ("index_select", 0.2e-3, lambda x, i: x.index_select(0, i), (floats(*TABLE), indexes(20_000))),
    (
        "scatter_add",
        5.77e-3,
        lambda x, i, v: x.scatter_add(0, i, v),
        (floats(20_000, 64), indexes(20_000, 64), floats(20_000, 64)),
    ),
    (
        "index_add",
        1.0e-3,
        lambda x, i, v: x.index_add(0, i, v),
        (floats(20_000, 64), indexes(20_000), floats(20_000, 64)),
    ),
    ("sort", 51.4e-3, lambda x: x.sort()[0], (floats(200, 5000),)),
    ("sort", 80.9e-3, lambda x: x.sort()[0], (floats(1_000_000),)),
    ("topk", 6.16e-3, lambda x: x.topk(10)[0], (floats(200, 32_000),)),
    ("topk", 63.0e-3, lambda x: x.topk(2000)[0], (floats(200, 32_000),)),
    ("topk", 0.53e-3, lambda x: x.topk(2)[0], (floats(8192, 8),)),
    ("kthvalue", 34.7e-3, lambda x: x.kthvalue(50)[0], (floats(200, 20_000),)),
    ("median", 41.8e-3, lambda x: x.median(1)[0], (floats(200, 20_000),)),
    ("cumsum", 8.13e-3, lambda x: x.cumsum(0), (floats(20_000, 200),)),
    ("logcumsumexp", 96.7e-3, lambda x: x.logcumsumexp(1), (floats(200, 20_000),)),
    ("searchsorted", 9.47e-3, torch.searchsorted, (floats(100_000), floats(100_000))),
    ("bucketize", 49.8e-3, lambda b, x: torch.bucketize(x, b), (floats(1000), floats(1_000_000))),
    ("isin", 4.82e-3, torch.isin, (indexes(100_000), indexes(5000))),
    ("histc", 3.54e-3, lambda x: x.histc(100), (floats(1_000_000),)),
    ("upsample_bicubic2d", 1.17e-3, resized("bicubic"), (floats(*IMAGES),)),
    ("upsample_bicubic2d_backward", 3.1e-3, resized("bicubic"), (floats(*IMAGES),)),
    ("upsample_trilinear3d", 7.79e-3, resized("trilinear"), (floats(*VOLUMES),)),
    ("upsample_trilinear3d_backward", 9.52e-3, resized("trilinear"), (floats(*VOLUMES),)),
    (
        "grid_sampler_2d_backward",
        2.79e-3,
        sampled("bicubic"),
        (floats(4, 8, 64, 64), floats(4, 64, 64, 2)),
    ),
    (
        "max_pool2d_with_indices",
        18.8e-3,
        lambda x: F.max_pool2d(x, 3, 2, 1),
        (floats(4, 64, 112, 112),),
    ),
    ("nll_loss_forward", 0.007e-3, F.cross_entropy, (floats(2000, 1000), indexes(2000))),
    ("var", 9.42e-3, lambda x: x.var(1), (floats(2000, 1000),)),
    ("any", 3.0e-3, lambda x: (x > 0).any(1), (floats(2000, 1000),)),
    ("digamma", 4.86e-3, lambda x: x.digamma(), (floats(2000, 100),)),
    ("_linalg_svd", 7.09e-3, lambda x: torch.linalg.svd(x, False)[1], (floats(10, 100, 100),)),
    ("linalg_inv_ex", 3.81e-3, torch.linalg.inv, (floats(20, 100, 100),)),
    ("linalg_eig", 3.39e-3, lambda x: torch.linalg.eig(x)[0], (floats(10, 50, 50),)),
    ("linalg_matrix_exp", 1.78e-3, torch.linalg.matrix_exp, (floats(20, 50, 50),)),
    ("_fft_r2c", 0.68e-3, torch.fft.rfft, (floats(200, 4096),)),
    ("_fft_c2c", 1.44e-3, lambda x: torch.fft.fft2(x * 1j), (floats(8, 256, 256),)),
]


@pytest.mark.parametrize(("name", "measured", "function", "inputs"), MEASURED)
def test_seconds_are_of_the_right_size(
    name: str, measured: float, function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    recorded = record(Called(function), inputs, backward="backward" in name)
    found = evaluate(recorded.program, Cluster.load("cpu"))
    pairs = zip(found.ops, found.costs, strict=True)
    seconds = [cost.seconds for op, cost in pairs if op.kind.split(".")[1] == name]
    assert seconds
    assert measured / FACTOR <= max(seconds) <= measured * FACTOR
