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
    yield from diagonals()
    yield from insertions()
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
    for k in range(-1, 4):
        yield s("rot90", x, k, [0, -1])
    spectrum = torch.complex(f(2, 3), f(3, 2).T.contiguous())
    for suffix in ("", "_copy"):
        yield s(f"view_as_real{suffix}", spectrum)
        yield s(f"view_as_complex{suffix}", f(3, 5, 2))
    yield s("flip", x, [0, -1])
    yield s("roll", x, [1, 2], [0, -1])
    yield s("roll", x, [2])
    yield s("flip", f(7), [0])
    yield s("roll", f(7), [-3])
    yield s("roll", f(7, 2), [4, 5], [0, 0])


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
        yield s(f"slice{suffix}.Tensor", f(11), 0, 2, 10)
        yield s(f"slice{suffix}.Tensor", f(11, 2), 0, 1, 10, 3)
        yield s(f"slice{suffix}.Tensor", f(2, 12), 1, 3, 9)
        yield s(f"unbind{suffix}.int", x)
        yield s(f"unbind{suffix}.int", x, -1)
        yield s(f"split{suffix}.Tensor", x, 4, 1)
        yield s(f"split{suffix}.Tensor", f(12), 4)
        yield s(f"split_with_sizes{suffix}", x, [1, 3, 2], 1)
        yield s(f"split_with_sizes{suffix}", f(12, 2), [6, 0, 3, 3])
        yield s(f"split_with_sizes{suffix}", x, [4], 0)
        yield s(f"unfold{suffix}", x, 1, 3, 2)
        yield s(f"unfold{suffix}", x, -2, 3, 3)
        yield s(f"unfold{suffix}", f(7), 0, 3, 3)
        yield s(f"unfold{suffix}", f(), 0, 1, 1)
    yield s("unfold_backward", f(4, 2, 5, 3), [4, 6, 5], 1, 3, 2)
    yield s("unfold_backward", f(4, 2, 5, 3), [4, 6, 5], -2, 3, 3)
    yield s("unfold_backward", f(2, 3), [7], 0, 3, 3)
    yield s("unsafe_split.Tensor", x, 4, 1)
    yield s("unsafe_split.Tensor", f(12), 4)
    yield s("unsafe_split_with_sizes", f(12, 2), [6, 0, 3, 3])
    yield s("narrow_copy", x, 1, 1, 3)
    yield s("narrow_copy", f(2, 12), -1, -8, 4)
    yield s("narrow_copy", f(2, 12), 1, 0, 12)
    yield s("chunk", x, 2, -2)
    yield s("chunk", f(5), 2)


DIAGONALS = (
    ((4, 4), 0, 0, 1),
    ((3, 4, 2), 0, 0, 1),
    ((3, 4, 2), 1, -1, 1),
    ((2, 3, 5), 2, 1, 2),
    ((2, 5, 3), -2, -2, -1),
    ((5, 2, 3), 1, 2, 0),
    ((3, 4), -3, 0, 1),
)
"""Shape of a tensor, offset and dimensions of a diagonal."""


def diagonals() -> Iterator[Sample]:
    """Yields samples of diagonals and triangles."""
    for shape, *which in DIAGONALS:
        x = f(*shape)
        diagonal = torch.diagonal(x, *which).contiguous()
        yield s("diagonal", x, *which)
        yield s("diagonal_copy", x, *which)
        yield s("diagonal_backward", diagonal, list(shape), *which)
        yield s("diagonal_scatter", x, diagonal.flip(-1), *which)
    yield s("diagonal", i(4, 3))
    yield s("diagonal", i(3, 4).bool())
    yield s("diag_embed", f(5))
    yield s("diag_embed", f(2, 5), 0, 0, -1)
    yield s("diag_embed", f(2, 3), -1)
    yield s("diag_embed", f(2, 3), 0, -1, 0)
    for k in (-1, 0, 1):
        yield s("tril", f(4, 6, 5), k)
        yield s("triu", f(3, 4), k)


def insertions() -> Iterator[Sample]:
    """Yields samples of parts that are put into a tensor."""
    yield s("slice_scatter", f(4, 6), f(4, 3), 1, 0, 3)
    yield s("slice_scatter", f(4, 6), f(4, 2), -1, -4, -2)
    yield s("slice_scatter", f(2, 11), f(2, 7), 1, 3, 10)
    yield s("slice_scatter", f(2, 12), f(2, 6), 1, 2, 8)
    yield s("slice_backward", f(2, 7), [2, 11], 1, 3, 10, 1)
    yield s("slice_backward", f(2, 6), [2, 12], 1, 2, 8, 1)
    yield s("slice_scatter", f(4, 6), f(2, 6), 0, 1, 3)
    yield s("slice_scatter", f(12, 2), f(4, 2), 0, 4, 8)
    yield s("slice_scatter", f(12, 2), f(4, 2), 0, 1, 8, 2)
    yield s("slice_scatter", f(3), f(3))
    yield s("slice_backward", f(4, 3), [4, 6], 1, 0, 3, 1)
    yield s("slice_backward", f(4, 2), [4, 6], -1, -4, -2, 1)
    yield s("slice_backward", f(4, 2), [12, 2], 0, 4, 8, 1)
    yield s("slice_backward", f(4, 2), [12, 2], 0, 8, 100, 1)
    yield s("slice_backward", f(4, 2), [12, 2], 0, 1, 8, 2)
    yield s("slice_backward", f(3), [3], 0, 0, 100, 1)
    for dim, index in ((1, 2), (-2, -1), (0, 0)):
        x = f(4, 6)
        part = x.select(dim, index).contiguous()
        yield s("select_scatter", x, part * 2, dim, index)
        yield s("select_backward", part, [4, 6], dim, index)


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
    yield s("block_diag", [f(3, 2), f(4), f(), f(2, 0)])
    yield s("_chunk_cat", [f(3, 2), f(3, 4)], 1, 2)
    yield s("_chunk_cat", [f(3, 2), f(4)], 0, 2)
    yield s("constant_pad_nd", f(3, 4), [1, 2])
    yield s("constant_pad_nd", f(3, 4), [0, 0, 1, -1], 2.5)
    yield s("constant_pad_nd", i(7), [9, -2], 3)
    x = f(2, 3, 4, 5, 6)
    for kind in ("reflection", "replication"):
        yield s(f"{kind}_pad1d", f(2, 7), [5, 6])
        yield s(f"{kind}_pad1d", f(2, 3, 4), [1, 2])
        yield s(f"{kind}_pad2d", f(2, 3, 4, 5), [1, 2, 0, 1])
        yield s(f"{kind}_pad3d", x, [1, 2, 0, 1, 1, 1])
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
    yield s("repeat", f(3, 4), [2, 0, 1])
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
    yield s("arange", 5, dtype=torch.float64)
    yield s("arange", 2.5)
    yield s("eye", 4)
    yield s("eye.m", 3, 5)
    yield s("eye.m", 5, 3, dtype=torch.int64)
    for name in ("linspace", "logspace"):
        yield s(name, 0.0, 1.0, 5)
        yield s(f"{name}.Tensor_Tensor", f(), f(), 5)
        yield s(f"{name}.Tensor_Scalar", f(), 1.0, 5)
        yield s(f"{name}.Scalar_Tensor", 0.0, f(), 5)
    yield s("tril_indices", 3, 4)
    yield s("triu_indices", 3, 4)
    for name in ("bartlett", "blackman", "hamming", "hann", "kaiser"):
        yield s(f"{name}_window", 6)
        yield s(f"{name}_window.periodic", 6, False)
    yield s("hamming_window.periodic_alpha", 6, True, 0.5)
    yield s("hamming_window.periodic_alpha_beta", 6, True, 0.5, 0.4)
    yield s("kaiser_window.beta", 6, True, 10.0)
