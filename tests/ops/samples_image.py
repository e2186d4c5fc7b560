"""Samples of convolutions, pooling, resizing, transforms and quantization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.ops.sample import Sample, f, i, s


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from convolutions()
    yield from pooling()
    yield from resizing()
    yield from gradients()
    yield from transforms()


def _conv(x: Any, w: Any, bias: Any, transposed: bool = False, groups: int = 1) -> Sample:
    n = x.ndim - 2
    pads = [0] * n
    return s("convolution", x, w, bias, [1] * n, [1] * n, [1] * n, transposed, pads, groups)


def convolutions() -> Iterator[Sample]:
    """Yields samples of convolutions."""
    x = f(2, 4, 5, 6)
    yield _conv(x, f(3, 4, 3, 3), None)
    yield _conv(x, f(3, 4, 3, 3), f(3))
    yield _conv(x, f(6, 2, 3, 3), f(6), groups=2)
    yield _conv(x, f(4, 1, 3, 3), None, groups=4)
    yield _conv(f(1, 6, 5), f(6, 2, 3), None, groups=3)
    yield _conv(f(2, 6, 2, 3, 4), f(2, 6, 1, 2, 2), f(2))
    yield _conv(x, f(4, 3, 3, 3), None, transposed=True)
    yield _conv(x, f(4, 3, 3, 3), f(3), transposed=True)
    yield _conv(x, f(4, 3, 3, 3), f(6), transposed=True, groups=2)
    yield s("conv1d", f(2, 4, 5), f(3, 4, 3), f(3))
    # Kernels wider than a part, strides, dilation, uneven sizes.
    yield s("conv1d", f(2, 4, 7), f(3, 4, 5), None, [1], [4])
    yield s("conv1d", f(2, 2, 11), f(3, 2, 3), f(3), [2], [1], [2])
    yield s("conv1d", f(1, 2, 11), f(3, 2, 2), None, [4])
    yield s("conv2d", f(1, 2, 7, 6), f(3, 2, 3, 2), None, [2, 3], [1, 2])
    yield s("conv1d.padding", f(2, 4, 7), f(3, 4, 4), f(3), [1], "same", [2])
    for stride, padding, more in ((1, 1, 0), (1, 3, 0), (2, 1, 1), (2, 0, 0), (3, 2, 2), (3, 0, 0)):
        x1, w1 = f(2, 4, 5), f(4, 3, 4)
        yield s("conv_transpose1d", x1, w1, f(3), [stride], [padding], [more])
        yield s("conv_transpose1d", x1, w1, None, [stride], [padding], [more], 1, [2])
    yield s("conv2d", x, f(3, 4, 1, 1))
    yield s("conv2d", x, f(3, 4, 1, 1), f(3), [2, 1], [0, 1])
    yield s("conv2d", f(2, 4, 6, 8), f(3, 4, 3, 2), f(3), [3, 2])
    yield s("conv2d", f(2, 4, 6, 8), f(3, 4, 3, 3), None, [3, 3])
    yield s("conv1d.padding", f(2, 4, 5), f(3, 4, 3), f(3), [1], "same")
    yield s("conv2d.padding", x, f(3, 4, 1, 1), None, [1, 1], "same")
    yield s("conv2d.padding", x, f(3, 4, 2, 2), f(3), [1, 1], "valid")
    yield s("conv3d.padding", f(1, 2, 3, 3, 3), f(3, 2, 2, 2, 2), None, [1] * 3, "same")
    yield s("conv_transpose2d.input", x, f(4, 3, 3, 2), None, [3, 2])
    yield s("conv_transpose2d.input", x, f(4, 3, 3, 2), None, [3, 2], [0], [0, 0], 1, [2])
    yield s("conv_transpose2d.input", x, f(4, 3, 1, 1), None, [2], [0], [1])
    yield s("conv2d", x, f(3, 4, 3, 3), None, [2, 1])
    yield s("conv2d", x, f(6, 2, 3, 3), f(6), groups=2)
    yield s("conv3d", f(1, 2, 3, 3, 3), f(3, 2, 2, 2, 2))
    yield s("conv_transpose1d", f(2, 4, 5), f(4, 3, 3), f(3))
    yield s("conv_transpose2d.input", x, f(4, 3, 2, 2), None, [2, 2])
    yield s("conv_transpose3d.input", f(1, 2, 3, 3, 3), f(2, 3, 2, 2, 2))
    yield from convolution_gradients()


def convolution_gradients() -> Iterator[Sample]:
    """Yields samples of gradients of convolutions."""
    x = f(2, 4, 5, 6)
    plain = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    grad, w = f(2, 3, 5, 6), f(3, 4, 3, 3)
    everything, weights = [True, True, True], [False, True, False]
    yield s("convolution_backward", grad, x, w, [3], *plain, everything)
    yield s("convolution_backward", grad, x, w, None, *plain, [True, True, False])
    yield s("convolution_backward", grad, x, w, [3], *plain, [False, True, True])
    yield s("convolution_backward", grad, x, f(3, 4, 1, 1), [3], *_gradient_of([1, 1]), everything)
    strided = _gradient_of([2, 2], [1, 1], [1, 2])
    yield s("convolution_backward", f(2, 3, 3, 2), x, w, [3], *strided, everything)
    yield s("convolution_backward", f(2, 3, 3, 2), x, w, None, *strided, weights)
    grouped = ([2, 2], [1, 1], [1, 1], False, [0, 0], 2)
    yield s("convolution_backward", f(2, 6, 3, 3), x, f(6, 2, 3, 3), [6], *grouped, everything)
    swapped = ([1, 1], [1, 1], [1, 1], True, [0, 0], 1)
    w = f(4, 3, 3, 3)
    yield s("convolution_backward", grad, x, w, [3], *swapped, everything)
    yield s("convolution_backward", grad, x, w, None, *swapped, weights)
    swapped = ([2, 2], [1, 1], [1, 1], True, [1, 0], 1)
    grad = f(2, 3, 10, 11)
    yield s("convolution_backward", grad, x, w, [3], *swapped, everything)
    yield s("convolution_backward", grad, x, w, None, *swapped, weights)


def _gradient_of(stride: Any, padding: Any = (0, 0), dilation: Any = (1, 1)) -> tuple[Any, ...]:
    return (stride, list(padding), list(dilation), False, [0, 0], 1)


def pooling() -> Iterator[Sample]:
    """Yields samples of pooling."""
    images = {1: f(2, 3, 8), 2: f(2, 3, 6, 8), 3: f(2, 3, 4, 6, 4)}
    for n, x in images.items():
        yield s(f"max_pool{n}d", x, [2] * n)
        yield s(f"max_pool{n}d_with_indices", x, [3] * n, [2] * n, [1] * n)
        yield s(f"avg_pool{n}d", x, [2] * n)
        yield s(f"avg_pool{n}d", x[0], [3] * n, [1] * n, [1] * n)
        yield s(f"adaptive_avg_pool{n}d", x, [2] * n)
        yield s(f"adaptive_max_pool{n}d", x, [2] * n)
        if n > 1:
            yield s(f"_adaptive_avg_pool{n}d", x, [1] * n)
        part = {"kernel_size": [3] * n, "stride": [2] * n, "padding": [1] * n, "dilation": [1] * n}
        whole = {"ceil_mode": True, "starts": [0] * n, "plane": list(x.shape[-n:])}
        yield Sample("autopar.max_pool_with_indices", {"self": x, **part, **whole})
        # Wider than a part, and with a stride that no part is a multiple of.
        yield s(f"max_pool{n}d", x, [4] * n, [1] * n, [2] * n)
        yield s(f"max_pool{n}d", x, [2] * n, [3] * n, [1] * n, [2] * n, True)
        yield s(f"avg_pool{n}d", x, [3] * n, [2] * n, [1] * n, True)
        yield s(f"avg_pool{n}d", x, [3] * n, [2] * n, [1] * n, False, False)
        yield s(f"adaptive_avg_pool{n}d", x, [*x.shape[2:-1], 3])
    yield s("avg_pool2d", images[2], [3, 2], [2, 2], [1, 1], False, False, 5)
    yield s("max_pool2d_with_indices", f(3, 6, 8), [2, 2])
    yield s("max_pool2d", i(2, 3, 6, 8), [3, 3], [1, 1], [1, 1])


def resizing() -> Iterator[Sample]:
    """Yields samples of resizing."""
    images = {1: f(2, 3, 4), 2: f(2, 3, 4, 5), 3: f(2, 3, 4, 3, 2)}
    for n, x in images.items():
        for name in ("upsample_nearest", "_upsample_nearest_exact"):
            yield s(f"{name}{n}d", x, [6] * n)
            yield s(f"{name}{n}d.vec", x, None, [2.0] * n)
    for name, n in (("linear1d", 1), ("bilinear2d", 2), ("bicubic2d", 2), ("trilinear3d", 3)):
        yield s(f"upsample_{name}", images[n], [6] * n, False)
        yield s(f"upsample_{name}.vec", images[n], None, True, [1.5] * n)
        yield s(f"upsample_{name}", images[n][..., :3], [3, 12, 9][:n], False)
    for after, ratios in (([12, 10], None), ([3, 5], None), ([12, 10], (2.0, 2.0)), ([9, 4], None)):
        for name in ("bilinear2d", "bicubic2d"):
            yield s(f"upsample_{name}", f(1, 2, 6, 5), after, False, *(ratios or ()))
    yield s("upsample_linear1d", f(2, 1, 7), [21], False)
    yield s("upsample_bicubic2d.vec", f(1, 1, 5, 4), None, False, [2.0, 3.0])
    for name in ("bilinear2d", "bicubic2d"):
        args = {"kind": f"upsample_{name}", "size": [12, 10], "margin": [0, 0]}
        yield Sample("autopar.resize", {"self": f(1, 2, 6, 5), **args})
    for low, high, fill in ((0, 3, 0), (-1, 4, 0), (2, 7, float("-inf")), (-2, 8, 0)):
        args = {"dim": 1, "low": low, "high": high, "fill": fill}
        yield Sample("autopar.window", {"self": f(3, 6, 2), **args})
    for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
        yield s(name, images[2], [2, 3], False)
        yield s(f"{name}.vec", images[2], [2, 3], False, None)
        yield s(f"{name}_backward", f(2, 3, 2, 3), [2, 3], [2, 3, 4, 5], False)
    for name in ("upsample_nearest", "_upsample_nearest_exact"):
        yield s(f"{name}2d", f(2, 1, 4, 6), [8, 3])
        yield s(f"{name}2d", f(2, 1, 6, 4), [8, 4], 8 / 6, 1.0)
        yield s(f"{name}2d", f(2, 1, 4, 6), [8, 3], 2.0, 0.5)
        yield s(f"{name}1d", f(2, 1, 49), [49 * 3])
        yield s(f"{name}1d.vec", f(2, 1, 5), None, [1.7])
        for n in (1, 2, 3):
            after = [6, 10, 4][:n]
            before = [2, 3, *[3, 5, 3][:n]]
            yield s(f"{name}{n}d_backward", f(2, 3, *after), after, before)
    for name, n in (("linear1d", 1), ("bilinear2d", 2), ("bicubic2d", 2), ("trilinear3d", 3)):
        after = [6, 10, 4][:n]
        yield s(f"upsample_{name}_backward", f(2, 3, *after), after, [2, 3, *[3] * n], True)


def gradients() -> Iterator[Sample]:
    """Yields samples of gradients of pooling and resizing."""
    x, volume = f(2, 3, 4, 6), f(2, 3, 4, 4, 4)
    grad = f(2, 3, 2, 3)
    yield from max_pool_gradients()
    _, at = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])
    tail = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    yield s("max_pool2d_with_indices_backward", grad, x, *tail, at)
    _, at = torch.ops.aten.max_pool3d_with_indices(volume, [2, 2, 2])
    tail3 = ([2] * 3, [2] * 3, [0] * 3, [1] * 3, False)
    yield s("max_pool3d_with_indices_backward", f(2, 3, 2, 2, 2), volume, *tail3, at)
    yield s("avg_pool2d_backward", grad, x, [2, 2], [2, 2], [0, 0], False, True, None)
    yield s("avg_pool2d_backward", grad, x, [2, 2], [], [0, 0], False, True, 3)
    yield s("avg_pool2d_backward", f(2, 3, 2, 3), x, [3, 3], [2, 2], [1, 1], False, True, None)
    yield s("avg_pool2d_backward", f(2, 3, 2, 3), x[..., :5], [2], [2], [0], True, True, None)
    cube = ([2] * 3, [2] * 3, [0] * 3, False, True, None)
    yield s("avg_pool3d_backward", f(2, 3, 2, 2, 2), volume, *cube)
    yield s("_adaptive_avg_pool2d_backward", grad, x)
    yield s("_adaptive_avg_pool2d_backward", f(3, 3, 2), f(3, 6, 5))
    yield s("_adaptive_avg_pool3d_backward", f(2, 3, 2, 4, 3), volume)
    yield from fractional()
    _, at = torch.ops.aten.adaptive_max_pool2d(x, [2, 4])
    yield s("adaptive_max_pool2d_backward", f(2, 3, 2, 4), x, at)
    _, at = torch.ops.aten.adaptive_max_pool3d(volume, [2, 4, 3])
    yield s("adaptive_max_pool3d_backward", f(2, 3, 2, 4, 3), volume, at)


def fractional() -> Iterator[Sample]:
    """Yields samples of pooling with random windows, and of its gradients."""
    for n, x in {2: f(2, 3, 6, 5), 3: f(2, 3, 6, 5, 6)}.items():
        numbers, outputs = f(2, 3, n, low=0, high=1), [3, 2, 3][:n]
        for images, given in ((x, numbers), (x[0], numbers[:1])):
            call = s(f"fractional_max_pool{n}d", images, [2] * n, outputs, given)
            yield call
            pooled, at = call.results
            grad = pooled * 2 - 1
            backward = f"fractional_max_pool{n}d_backward"
            yield s(backward, grad, images, [2] * n, outputs, at)


def grids() -> Iterator[Sample]:
    """Yields samples of images that are sampled at points of a grid, and of rows' distances."""
    image, grid = f(2, 3, 4, 5), f(2, 3, 2, 2, low=-1, high=1)
    cube, points = f(2, 3, 4, 5, 2), f(2, 2, 3, 2, 3, low=-1)
    for mode in (0, 1, 2):
        yield s("grid_sampler_2d", image, grid, mode, mode, False)
        yield s("grid_sampler_2d_backward", f(2, 3, 3, 2), image, grid, mode, 0, True, [True, True])
    for mode in (0, 1):
        yield s("grid_sampler_3d", cube, points, mode, 1, True)
        tail = (cube, points, mode, 1, False)
        for mask in ([True, True], [True, False], [False, True]):
            yield s("grid_sampler_3d_backward", f(2, 3, 2, 3, 2), *tail, mask)
    yield s("affine_grid_generator", f(3, 2, 3), [3, 2, 4, 5], False)
    yield s("affine_grid_generator", f(3, 3, 4), [3, 2, 4, 5, 2], True)
    maxima, at = torch.ops.aten.max_pool2d_with_indices(image, [2, 2])
    yield s("max_unpool2d", maxima, at, [4, 5])
    yield s("max_unpool2d", maxima[0], at[0], [4, 5])
    maxima, at = torch.ops.aten.max_pool3d_with_indices(cube, [2, 2, 1])
    yield s("max_unpool3d", maxima, at, [4, 5, 2], [2, 2, 1], [0, 0, 0])
    rows, others = f(2, 3, 5), f(2, 4, 5)
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        distances = torch.ops.aten._cdist_forward(rows, others, p, None)
        yield s("_cdist_forward", rows, others, p, None)
        yield s("_cdist_forward", f(1, 3, 5), others, p, None)
        yield s("_cdist_backward", f(2, 3, 4), rows, others, p, distances)


def max_pool_gradients() -> Iterator[Sample]:
    """Yields samples of gradients of max pooling, with windows apart, side by side, overlapping."""
    x = f(2, 3, 9, 6)
    for kernel, stride, padding in (([3, 2], [1, 2], [1, 0]), ([3, 3], [3, 2], [1, 1])):
        y, at = torch.ops.aten.max_pool2d_with_indices(x, kernel, stride, padding)
        settings = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": [1, 1]}
        tail = (kernel, stride, padding, [1, 1], False)
        yield s("max_pool2d_with_indices_backward", f(*y.shape), x, *tail, at)
        ends = {"starts": [0, 0], "plane": [9, 6], "sizes": [9, 6]}
        part = {"grad_output": f(*y.shape), "indices": at, **settings, **ends}
        yield Sample("autopar.max_pool_backward", part)


def transforms() -> Iterator[Sample]:
    """Yields samples of ops on whole images, rows and signals."""
    square = ([2, 2], [1, 1], [0, 0], [1, 1])
    yield s("im2col", f(2, 3, 4, 5), *square)
    yield s("im2col", f(3, 4, 5), *square)
    yield s("im2col", f(2, 7, 6), [2, 3], [2, 1], [1, 2], [2, 1])
    yield s("col2im", f(2, 12, 12), [4, 5], *square)
    yield from grids()
    yield s("_fft_r2c", f(3, 8), [1], 0, True)
    spectrum = torch.complex(f(3, 5), f(5, 3).T.contiguous())
    yield s("_fft_c2c", spectrum, [0], 0, True)
    yield s("_fft_c2r", spectrum, [1], 2, 8)
    yield s("histc", f(3, 4), 5, -2, 2)
    yield s("histc", f(3, 4), 5)
    yield s("linalg_cross", f(4, 3), f(1, 3))
    yield s("prelu", f(2, 3, 4), f(3))
    yield s("prelu", f(2, 3, 4), f(1))
    yield s("_cdist_forward", f(2, 3, 4), f(1, 5, 4), 2.0, None)
