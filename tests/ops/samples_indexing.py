"""Samples of ops that look up elements, or write them, at positions that an index holds."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.ops.sample import Sample, b, f, i, s


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from lookups()
    yield from bags()
    yield from searches()
    yield from writes()
    yield from advanced()


def lookups() -> Iterator[Sample]:
    """Yields samples of lookups along one dimension."""
    table = f(6, 4)
    yield s("embedding", table, i(2, 3, low=0, high=6))
    yield s("embedding", table, i(low=0, high=6), 2)
    yield s("embedding", b(5, 2), i(3, low=0, high=5))
    yield s("embedding", i(5, 2, dtype=torch.int8), i(3, low=0, high=5, dtype=torch.int32))
    for dim in (0, 1, -1):
        yield s("index_select", f(5, 5, 5), dim, i(3, low=0, high=5))
    yield s("index_select", f(5, 3), 0, torch.tensor(2))
    yield s("index_select", f(5, 3), 1, i(0, low=0, high=1))
    for suffix in ("", "_copy"):
        yield s(f"select{suffix}.int", f(4, 6, 5), 1, -1)
        yield s(f"select{suffix}.int", f(4, 6, 5), -1, 2)
        yield s(f"select{suffix}.int", b(5), 0, 4)
    yield s("gather", f(4, 5), 1, i(4, 3, low=0, high=5))
    yield s("gather", f(4, 5), 0, i(3, 5, low=0, high=4))
    yield s("gather", f(4, 5, 3), -1, i(2, 5, 4, low=0, high=3))
    yield s("gather", f(), 0, i(low=0, high=1))
    yield s("gather", f(), 0, i(3, low=0, high=1))
    yield s("gather", f(5), 0, i(2, 0, low=0, high=1))
    yield s("index_select", f(), 0, i(1, low=0, high=1))
    yield s("take", f(3, 4), i(2, 5, low=-12, high=12))
    yield s("take", f(5), i(7, low=-5, high=5))
    yield s("take", f(), i(2, low=0, high=1))


def bags() -> Iterator[Sample]:
    """Yields samples of bags of an embedding."""
    indices, offsets = torch.tensor([0, 3, 5, 5, 1, 3]), torch.tensor([0, 2, 2])
    single = torch.float32
    grad = f(3, 4)
    for mode in (0, 1, 2):
        for padding in (-1, 3):
            common = (indices, offsets, False, mode, False)
            weigh = f(6) if mode == 0 else None
            for name in ("_embedding_bag", "_embedding_bag_forward_only"):
                yield s(name, f(7, 4), *common, weigh, False, padding)
                yield s(name, f(7, 4), *common, None, True, padding)
                yield s(name, f(7, 4, dtype=single), *common, None, False, padding)
            found = torch.ops.aten._embedding_bag(f(7, 4), *common, weigh, False, padding)
            tail = (False, mode, False, weigh, padding)
            yield s("_embedding_bag_backward", grad, indices, offsets, *found[1:], 7, *tail)
            tail = (False, mode, weigh, padding)
            yield s("_embedding_bag_dense_backward", grad, indices, *found[1:], 7, *tail)
    none = torch.empty(0, dtype=torch.int64)
    for placed in (none, torch.tensor([0, 0, 2, 2, 2, 2])):
        name = "_embedding_bag_per_sample_weights_backward"
        yield s(name, grad, f(7, 4), indices, offsets, placed, 0, 5)


def searches() -> Iterator[Sample]:
    """Yields samples of searches for values."""
    edges, rows = f(6).sort().values, f(3, 6).sort().values
    for right in (False, True):
        yield s("bucketize.Tensor", f(3, 4), edges, right=right)
        yield s("bucketize.Tensor", edges, edges, out_int32=True, right=right)
        yield s("searchsorted.Tensor", rows, f(3, 4), right=right)
        yield s("searchsorted.Tensor", edges, f(3, 4), right=right)
    yield s("searchsorted.Tensor", edges, torch.tensor([float("nan"), 0.0, float("inf")]).double())
    yield s("searchsorted.Tensor", f(3, 6), f(3, 4), sorter=f(3, 6).argsort())
    yield s("searchsorted.Tensor", f(6), f(2, 4), sorter=f(6).argsort())
    yield s("searchsorted.Scalar", edges, 0.25)
    yield s("bucketize.Scalar", 0.25, edges)


def writes() -> Iterator[Sample]:
    """Yields samples of writes along one dimension."""
    for ids in (i(2, 3, low=0, high=5), i(2, 3, low=2, high=4)):
        yield s("embedding_dense_backward", f(2, 3, 4), ids, 5, -1, False)
        yield s("embedding_dense_backward", f(2, 3, 4), ids, 5, 2, False)
        yield s("embedding_dense_backward", f(2, 3, 4), ids, 5, -1, True)
    yield from scatters()
    x, rows = f(6, 4), torch.tensor([1, 3])
    twice = torch.tensor([5, 0, 5])
    yield s("index_add", x, 0, rows, f(2, 4), alpha=2)
    yield s("index_add", x, 0, twice, f(3, 4))
    yield s("index_add", x, -1, torch.tensor(2), f(6, 1))
    yield s("index_copy", x, 1, rows, f(6, 2))
    yield s("index_copy", x, -2, rows, f(2, 4))
    for value in (2.5, 0):
        yield s("index_fill.int_Scalar", x, 1, rows, value)
        yield s("index_fill.int_Scalar", x, -2, torch.tensor([-1, 2, -1]), value)
    yield s("index_fill.int_Tensor", x, 0, torch.tensor([-6, 2]), f())
    for reduce in ("prod", "mean", "amax", "amin"):
        for included in (True, False):
            source = f(3, 4)
            yield s("index_reduce", x, 0, twice, source, reduce, include_self=included)
    yield s("index_reduce", i(3, 5), -1, i(2, low=0, high=5), i(3, 2), "amax")
    yield s("put", x, torch.tensor([[3, -1], [9, 4]]), f(2, 2))
    yield s("put", x, torch.tensor([3, 3, 20]), f(3), True)
    yield s("put", f(5), torch.tensor([[3], [1]]), f(2))
    yield s("put", f(), torch.tensor([0]), f(1))
    yield s("index_add", f(), 0, torch.tensor(0), f())
    yield s("index_copy", f(), 0, torch.tensor(0), f())
    yield s("put", f(5), torch.tensor([3, 1]), f(2))
    yield s("masked_scatter", x, b(6, 4), f(24))
    yield s("masked_scatter", x, b(4), f(6, 4))


def scatters() -> Iterator[Sample]:
    """Yields samples of scatters."""
    x, index = f(6, 4), torch.tensor([[0, 3, 1, 5], [5, 2, 0, 1]])
    src, columns = f(2, 4), torch.tensor([[3, 0]] * 6)
    yield s("scatter.src", x, 0, index, src)
    yield s("scatter.src", x, -1, columns, f(6, 2))
    yield s("scatter.src", x, 0, index, f(3, 4))
    yield s("scatter.src", i(6, 4), 0, torch.tensor([[4]]), i(3, 2))
    yield s("scatter.value", x, 0, index, 2.5)
    yield s("scatter.value", x, 0, index, 0)
    yield s("scatter.value", b(6, 4), -1, columns, True)
    yield s("scatter_add", x, 0, index, src)
    yield s("scatter_add", x, -1, torch.tensor([[3, 3]] * 6), f(6, 2))
    scalar = torch.tensor(0)
    yield s("scatter.src", f(), 0, scalar, f())
    yield s("scatter_add", f(), 0, scalar, f(1))
    yield s("scatter_add", f(5), 0, i(2, 0, low=0, high=1), f(2, 0))
    for reduce in ("add", "multiply"):
        yield s("scatter.reduce", x, 0, index, src, reduce=reduce)
        yield s("scatter.value_reduce", x, -1, columns, 2.5, reduce=reduce)
    repeated = torch.tensor([[0, 3, 0, 3], [5, 3, 5, 3], [5, 3, 0, 3]])
    for reduce in ("sum", "amax", "amin", "mean", "prod"):
        for included in (True, False):
            yield s("scatter_reduce.two", x, 0, index, src, reduce, include_self=included)
            yield s("scatter_reduce.two", x, 0, repeated, f(3, 4), reduce, include_self=included)
    yield s("scatter_reduce.two", x, -1, columns, f(6, 3), "amax")


def advanced() -> Iterator[Sample]:
    """Yields samples of lists of indices."""
    x, rows, columns = f(4, 5, 6), i(2, 3, low=-4, high=4), i(3, low=-5, high=5)
    for name in ("index.Tensor", "_unsafe_index.Tensor"):
        yield s(name, x, [rows])
        yield s(name, x, [None, columns])
        yield s(name, x, [rows, columns])
        yield s(name, x, [rows, None, columns])
        yield s(name, x, [None, rows, i(1, 1, low=0, high=6)])
        yield s(name, x, [None, None, torch.tensor(-1)])
        yield s(name, b(4, 5), [rows, i(1, 1, low=0, high=5)])
        yield s(name, x, [i(0, low=0, high=1), i(1, low=0, high=5)])
    yield s("index.Tensor", x, [None, torch.tensor([True, False, True, True, False])])
    yield s("index.Tensor", x, [b(4, 5)])
    rows, twice = torch.tensor([1, -1]), torch.tensor([1, 1, 3])
    x = f(6, 4)
    for name in ("index_put", "_unsafe_index_put"):
        yield s(name, x, [rows], f(2, 4))
        yield s(name, x, [None, rows], f(6, 1))
        yield s(name, x, [twice], f(4), True)
        yield s(name, x, [rows, rows], f())
        yield s(name, x, [rows.unsqueeze(1), twice], f(2, 3), True)
        yield s(name, f(6, 4, 5), [rows, None, rows], f(2, 4))
        yield s(name, f(3, 6, 4), [None, twice], f(3, 3, 4), True)
        for accumulate in (False, True):
            yield s(name, x, [b(6, 4)], f(), accumulate)
            yield s(name, x, [b(6)], f(4), accumulate)
            yield s(name, f(3, 6, 4), [None, b(6)], f(1, 4), accumulate)
            yield s(name, f(3, 6, 4), [None, b(6)], f(3, 1, 4), accumulate)
            some = torch.tensor([True, False, True, True, False, False])
            yield s(name, f(3, 6, 4), [None, some], f(3, 3, 1), accumulate)
            yield s(name, f(6), [some], f(3), accumulate)
    mask, ids = b(2, 4), i(2, 4, low=0, high=6)
    yield s("_unsafe_masked_index", x, mask, [ids, torch.tensor(1)], 0)
    yield s("_unsafe_masked_index", x, b(2, 1), [None, i(2, 3, low=0, high=4)], 2.5)
    name = "_unsafe_masked_index_put_accumulate"
    yield s(name, x, mask, [ids, torch.tensor(1)], f(2, 4))
    yield s(name, x, b(3, 1), [ids[0, :3]], f(3, 4))
