"""Samples of ops that move or create elements."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.ops.sample import Sample, f, i, s

VIEWS = (
    ((8, 5, 6), (8, 5, 2, 3)),
    ((2, 3, 4, 4), (6, 4, 4)),
    ((2, 3, 4), (24,)),
    ((6, 4), (4, 6)),
    ((6, 4, 5), (4, 6, 5)),
    ((12,), (3, 4)),
    ((4, 6), (2, 12)),
    ((2, 1, 3), (1, 6, 1)),
    ((0, 3), (3, 0)),
    ((1,), ()),
    ((5, 7), (7, 5)),
    ((9, 4), (6, 6)),
    ((3, 4), (3, 4)),
)


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from views()
    yield from permutations()
    yield from slices()
    yield from pieces()
    yield from repetitions()
    yield from creations()


def views() -> Iterator[Sample]:
    """Yields samples of views."""
    for source, target in VIEWS:
        yield s("view", f(*source), list(target))
    for name in ("_unsafe_view", "view_copy", "reshape"):
        yield s(name, f(4, 6), [4, 2, 3])
        yield s(name, f(4, 6), [-1, 3])
    yield s("flatten.using_ints", f(2, 3, 4), 1)
    yield s("ravel", f(3, 4))


def permutations() -> Iterator[Sample]:
    """Yields samples of permutations and of dimensions of size 1."""
    x = f(2, 3, 4)
    for suffix in ("", "_copy"):
        yield s(f"permute{suffix}", x, [2, 0, 1])
        yield s(f"permute{suffix}", x, [-1, 0, -2])
        yield s(f"transpose{suffix}.int", x, 0, -1)
        yield s(f"t{suffix}", f(3, 4))
        yield s(f"t{suffix}", f(3))
        yield s(f"unsqueeze{suffix}", x, 0)
        yield s(f"unsqueeze{suffix}", x, -2)
        yield s(f"squeeze{suffix}", f(2, 1, 3))
        yield s(f"squeeze{suffix}.dim", f(2, 1, 3), 1)
        yield s(f"squeeze{suffix}.dim", f(2, 1, 3), 0)
        yield s(f"squeeze{suffix}.dims", f(1, 2, 1, 3), [0, -2])
        yield s(f"squeeze{suffix}.dims", f(1, 2, 3), [0, 1])
        yield s(f"diagonal{suffix}", f(3, 4, 2))
        yield s(f"diagonal{suffix}", f(3, 4, 2), 1, -1, 1)
    yield s("flip", x, [0, -1])
    yield s("roll", x, [1, 2], [0, -1])
    yield s("roll", x, [2])


def slices() -> Iterator[Sample]:
    """Yields samples of parts of a tensor."""
    x = f(4, 6, 5)
    for suffix in ("", "_copy"):
        yield s(f"slice{suffix}.Tensor", x, 1, 1, 4)
        yield s(f"slice{suffix}.Tensor", x, -1, 0, 100)
        yield s(f"slice{suffix}.Tensor", x, 0, 1, -1, 2)
        yield s(f"slice{suffix}.Tensor", x)
        yield s(f"slice{suffix}.Tensor", f(3, 12), 1, 4, 8)
        yield s(f"slice{suffix}.Tensor", f(3, 12), 1, -3)
        yield s(f"slice{suffix}.Tensor", f(12, 2), 0, None, 8)
        yield s(f"slice{suffix}.Tensor", f(12, 2), 0, 3, 3)
        yield s(f"unbind{suffix}.int", x)
        yield s(f"unbind{suffix}.int", x, -1)
        yield s(f"split{suffix}.Tensor", x, 4, 1)
        yield s(f"split{suffix}.Tensor", f(12), 4)
        yield s(f"split_with_sizes{suffix}", x, [1, 3, 2], 1)
        yield s(f"split_with_sizes{suffix}", f(12, 2), [6, 0, 3, 3])
        yield s(f"split_with_sizes{suffix}", x, [4], 0)
        yield s(f"unfold{suffix}", x, 1, 3, 2)
    yield s("chunk", x, 2, -2)
    yield s("chunk", f(5), 2)
    yield s("tril", x)
    yield s("triu", x, 1)
    yield s("tril", f(3, 4), -1)


def pieces() -> Iterator[Sample]:
    """Yields samples of ops that join, pad and rearrange pieces."""
    yield s("cat", [f(3, 2), f(3, 4), f(3, 1)], 1)
    yield s("cat", [f(2, 3), f(2, 3)], -2)
    yield s("cat", [f(0), f(2, 3)], 1)
    yield s("cat", [f(0), f(3)])
    yield s("cat", [f(2, 6), f(2, 3), f(2, 3)], -1)
    yield s("cat", [f(2, 0), f(2, 0)], -1)
    yield s("cat", [i(3)])
    yield s("stack", [f(3, 2), f(3, 2)], -1)
    yield s("stack", [f(3), f(3)])
    yield s("constant_pad_nd", f(3, 4), [1, 2])
    yield s("constant_pad_nd", f(3, 4), [0, 0, 1, -1], 2.5)
    x = f(2, 3, 4, 5, 6)
    for kind in ("reflection", "replication"):
        yield s(f"{kind}_pad1d", f(2, 3, 4), [1, 2])
        yield s(f"{kind}_pad2d", f(2, 3, 4, 5), [1, 2, 0, 1])
        yield s(f"{kind}_pad3d", x, [1, 2, 0, 1, 1, 1])
    yield s("slice_scatter", f(4, 6), f(4, 3), 1, 0, 3)
    yield s("slice_scatter", f(4, 6), f(2, 6), 0, 1, 3)
    yield s("select_scatter", f(4, 6), f(4), 1, 2)
    yield s("pixel_shuffle", f(2, 12, 3, 5), 2)
    yield s("pixel_unshuffle", f(3, 4, 6), 2)
    yield s("channel_shuffle", f(2, 6, 3), 3)
    yield s("native_channel_shuffle", f(2, 6, 3), 2)


def repetitions() -> Iterator[Sample]:
    """Yields samples of repeated elements."""
    for suffix in ("", "_copy"):
        yield s(f"expand{suffix}", f(3, 1), [3, 4])
        yield s(f"expand{suffix}", f(3, 1), [2, -1, 5])
        yield s(f"expand{suffix}", f(), [3, 2])
        yield s(f"expand{suffix}", f(1, 1), [1, 4])
    yield s("repeat", f(3, 4), [2, 3])
    yield s("repeat", f(4), [3, 1, 2])
    yield s("repeat", f(3, 4), [1, 1])
    yield s("repeat_interleave.self_int", f(3, 4), 2, 1)
    yield s("repeat_interleave.self_int", f(3, 4), 3, -2)


def creations() -> Iterator[Sample]:
    """Yields samples of ops that create tensors. Empty ones hold anything, so they aren't run."""
    yield s("full", [3, 4], 2.5)
    yield s("full", [], 2.5)
    for name in ("zeros", "ones"):
        yield s(name, [3, 4], dtype=torch.float32)
        yield s(f"{name}_like", f(3, 4))
        yield s(f"new_{name}", f(5), [3, 4])
    yield s("full_like", f(3, 4), 2, dtype=torch.int64)
    yield s("new_full", f(5, 2), [3, 4], 2)
    yield s("arange", 5)
    yield s("arange.start", 2, 9)
    yield s("arange.start_step", 0, 10)
    yield s("arange.start_step", 3, 20, 4, dtype=torch.float32)
    yield s("arange.start_step", 7, -6, -3)
    yield s("arange.start_step", 0.0, 1.0, 0.25)
    yield s("scalar_tensor", 2.5)
    yield s("eye", 4)
    yield s("eye.m", 3, 5)
    yield s("linspace", 0.0, 1.0, 5)
    yield s("logspace", 0.0, 1.0, 5)
    yield s("tril_indices", 3, 4)
    yield s("triu_indices", 3, 4)
    for name in ("hann", "hamming", "blackman"):
        yield s(f"{name}_window", 6)
