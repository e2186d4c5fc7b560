"""Samples of bins, segments, distances and quantization."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.ao.quantization.fx._decomposed

from tests.ops.sample import Sample, c, f, i, s


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from binning()
    yield from distances()
    yield from gated()
    yield from complex_views()
    yield from quantized()


def binning() -> Iterator[Sample]:
    """Yields samples of sets, histograms and segments."""
    for invert in (False, True):
        for unique in (False, True):
            options = {"invert": invert, "assume_unique": unique}
            yield s("isin.Tensor_Tensor", torch.arange(20).reshape(4, 5), i(7).unique(), **options)
        yield s("isin.Tensor_Tensor", i(4, 5), i(2, 3), invert=invert)
        yield s("isin.Tensor_Scalar", i(4, 5), 3, invert=invert)
        yield s("isin.Scalar_Tensor", 3, i(4, 5), invert=invert)
    x, weight = f(4, 5), f(5, 4).T.contiguous()
    yield s("histogram.bin_ct", x, 4, range=[-1.0, 1.0])
    yield s("histogram.bin_ct", x, 4, range=[-1.0, 1.0], weight=weight)
    yield s("histogram.bin_ct", x, 4)
    yield s("histogram.bins_tensor", x, torch.tensor([-1.0, 0.0, 0.5, 2.0], dtype=torch.float64))
    edges = [torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)] * 2
    points, heights = f(7, 2), f(7, low=0.1)
    yield s("_histogramdd_from_bin_tensors", points, edges, weight=heights)
    yield s("_histogramdd_from_bin_cts", points, [2, 3], range=[-1.0, 1.0, -2.0, 2.0])
    yield s("_histogramdd_from_bin_cts", points, [2, 3], density=True)
    yield s("_histogramdd_bin_edges", points, [2, 3], range=[-1.0, 1.0, -2.0, 2.0])
    for name in ("sum", "mean", "max", "min", "prod"):
        data, lengths = f(6, 4), torch.tensor([1, 3, 2])
        yield s("segment_reduce", data, name, lengths=lengths)
        found = torch.segment_reduce(data, name, lengths=lengths)
        back = "_segment_reduce_backward"
        yield s(back, f(3, 4, low=-1), found, data, name, lengths=lengths)
        yield s("segment_reduce", f(2, 6), name, lengths=torch.tensor([[1, 5], [4, 2]]), axis=1)


def distances() -> Iterator[Sample]:
    """Yields samples of distances between rows."""
    for order in (2.0, 1.0, 3.0, 0.0, math.inf):
        for left, right in ((f(3, 5), f(4, 5)), (f(2, 3, 5), f(2, 4, 5))):
            yield s("_cdist_forward", left, right, order, 2)
            found = torch.ops.aten._cdist_forward(left, right, order, 2)
            yield s("_cdist_backward", found.cos(), left, right, order, found)
        rows = f(4, 3)
        yield s("_pdist_forward", rows, order)
        found = torch.ops.aten._pdist_forward(rows, order)
        yield s("_pdist_backward", found.cos(), rows, order, found)
    yield s("_cdist_backward", f(0, 3, 4), f(3, 5), f(0, 4, 5), 0.0, f(0, 3, 4))
    yield s("_euclidean_dist", f(3, 5), f(4, 5))


def gated() -> Iterator[Sample]:
    """Yields samples of gated units."""
    for dim, shape, half in ((-1, (3, 8), (3, 4)), (0, (6, 4), (3, 4)), (1, (2, 10, 3), (2, 5, 3))):
        yield s("glu", f(*shape), dim)
        yield s("glu_backward", f(*half, low=-1), f(*shape), dim)
    yield s("glu", f(3, 2))


def complex_views() -> Iterator[Sample]:
    """Yields samples of complex numbers as pairs."""
    for way in ("", "_copy"):
        yield s(f"view_as_real{way}", c(3, 4))
        yield s(f"view_as_complex{way}", f(3, 4, 2))
        yield s("view_copy.dtype" if way else "view.dtype", f(4, 6), torch.int32)


def quantized() -> Iterator[Sample]:
    """Yields samples of quantization."""
    x, single = f(3, 4, dtype=torch.float32), torch.float32
    codes = i(3, 4, dtype=torch.int8)
    scale, zero, on = torch.tensor(0.1), torch.tensor(2), torch.tensor(1)
    scales, zeros = f(4, low=0.1, dtype=single), i(4, low=0, high=3)
    half = (scale, zero.to(torch.int32))
    vectors = (scales, zeros.to(torch.int32))
    for suffix in ("", "_cachemask"):
        yield s(f"fake_quantize_per_tensor_affine{suffix}", x, 0.1, 2, -128, 127)
        yield s(f"fake_quantize_per_channel_affine{suffix}", x, *vectors, 1, -128, 127)
    yield s("fake_quantize_per_tensor_affine.tensor_qparams", x, *half, -128, 127)
    mask = "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    yield s(mask, x, *half, on, -128, 127)
    learned = (scale.reshape(1), torch.tensor([2.0]))
    name = "_fake_quantize_learnable_per_tensor_affine"
    yield s(name, x, *learned, -128, 127)
    yield s(f"{name}_backward", x + 1, x, *learned, -8, 7, 0.5)
    name, learned = name.replace("tensor", "channel"), (scales, zeros.float())
    yield s(name, x, *learned, 1, -128, 127)
    yield s(f"{name}_backward", x + 1, x, *learned, 1, -8, 7, 0.5)
    yield from decomposed(x, codes)
    weights = i(16, 32, dtype=torch.int8)
    narrow = torch.bfloat16
    yield s("_weight_int8pack_mm", f(4, 32, dtype=narrow), weights, f(16, dtype=narrow))


def decomposed(x: torch.Tensor, codes: torch.Tensor) -> Iterator[Sample]:
    """Yields samples of quantization as PyTorch's export writes it."""
    names = [f"quantized_decomposed.{way}quantize_per_" for way in ("", "de")]
    scale, zero, limits = torch.tensor(0.1), torch.tensor(2), (-128, 127, torch.int8)
    scales, zeros = f(4, low=0.1, dtype=torch.float32), i(4, low=0, high=3)
    bounds = (torch.tensor(-128), torch.tensor(127), torch.int8)
    groups, steps = f(3, 2, low=0.1, dtype=torch.float32), i(3, 2, low=0, high=3)
    rows = (f(3, 1, low=0.1, dtype=torch.float32), i(3, 1, low=0, high=3))
    for name, value in zip(names, (x, codes), strict=True):
        yield s(f"{name}tensor.default", value, 0.1, 2, *limits)
        yield s(f"{name}tensor.tensor", value, scale, zero, *limits)
        yield s(f"{name}tensor.tensor2", value, scale, zero, *bounds)
        yield s(f"{name}channel.default", value, scales, zeros, 1, *limits)
    yield s(f"{names[0]}channel_group.default", x, groups, steps, *limits, 2)
    yield s(f"{names[1]}channel_group.default", codes, groups, steps, *limits, 2, torch.float32)
    yield s(f"{names[0]}token.default", x, *rows, *limits)
    yield s(f"{names[1]}token.default", codes, *rows, *limits, torch.float32)
    yield s("quantized_decomposed.convert_element_type.no_fuse", x, torch.float64)
    for name in ("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"):
        yield s(f"quantized_decomposed.{name}.default", x, torch.int8)
