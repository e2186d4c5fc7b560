"""Samples of reductions, normalizations and sorts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tests.ops.sample import Sample, b, c, f, i, s


def samples() -> Iterator[Sample]:
    """Yields the samples."""
    yield from reductions()
    yield from norms_of_vectors()
    yield from searches()
    yield from statistics()
    yield from along()
    yield from scalars()


def reductions() -> Iterator[Sample]:
    """Yields samples of reductions by a monoid."""
    x = f(3, 4, 5)
    for name in ("sum", "prod", "max", "min", "mean", "median", "nansum", "count_nonzero"):
        yield s(name, x)
    for name in ("any", "all"):
        yield s(name, b(3, 4))
        yield s(f"{name}.dim", b(3, 4), -1)
        yield s(f"{name}.dim", b(3, 4), 0, True)
        yield s(f"{name}.dims", b(3, 4), [0, 1])
        yield s(f"{name}.dims", b(3, 4), keepdim=True)
        yield s(f"{name}.dim", i(3, 4, low=0, high=2), 0)
    yield s("sum.dim_IntList", i(3, 4, dtype=torch.int8), [0])
    yield s("sum.dim_IntList", f(3, 4, dtype=torch.float32), [0], dtype=torch.float64)
    yield s("sum.dim_IntList", f(3, 1, 4), [1])
    yield s("sum.dim_IntList", f(3, 4), None)
    for dims, keep in (([0], False), ([-1], True), ([0, 2], False), ([1, 2], True), ([], False)):
        for name in ("sum.dim_IntList", "mean.dim", "amax", "amin"):
            yield s(name, x, dims, keep)
    yield s("mean.dim", f(3, 4, dtype=torch.float16), [1])
    yield s("mean.dim", i(3, 4), [1], dtype=torch.float32)
    yield s("nansum", x, [1])
    yield s("count_nonzero", i(3, 4), 1)
    yield s("count_nonzero.dim_IntList", i(3, 4), [0, 1])
    yield s("prod.dim_int", x, 1)
    yield s("prod.dim_int", i(3, 4), -1, True)
    yield s("aminmax", x, dim=1)
    yield s("aminmax", x, keepdim=True)
    yield s("aminmax", i(3, 4))
    yield s("sum", f())
    yield s("_is_all_true", b(3, 4))
    yield s("_is_any_true", b(3, 4))
    yield s("hash_tensor", x, [1])
    yield s("hash_tensor", x)
    yield s("nanmedian", SPECIAL)
    for name in ("sum", "amax", "amin", "prod", "mean", "nansum", "aminmax", "count_nonzero"):
        yield s(name, SPECIAL)
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16):
        few = i(3, 5, low=0, high=3).to(dtype)
        for name in ("sum.dim_IntList", "amax", "amin", "any.dims", "all.dims"):
            yield s(name, few, [1])
        yield s("prod.dim_int", few, 1)
    for name in ("sum.dim_IntList", "mean.dim"):
        yield s(name, c(3, 4), [1])
    yield s("prod.dim_int", c(3, 4), 1)


SPECIAL = torch.tensor(
    [[1.0, math.nan, 2.0], [-1.0, 0.5, 3.0], [math.inf, -2.0, -math.inf], [math.nan] * 3]
)
"""NaN and infinities, alone, together and in all of a row."""


def norms_of_vectors() -> Iterator[Sample]:
    """Yields samples of vector norms, and of ops that scale by them."""
    x, half = f(3, 4, 5), torch.bfloat16
    for order in (2, 0, 1, 3, 0.5, -1, math.inf, -math.inf):
        yield s("linalg_vector_norm", x, order, [1])
        yield s("linalg_vector_norm", x, order, keepdim=True)
        yield s("linalg_vector_norm", SPECIAL, order, [-1])
        yield s("linalg__powsum", x, order, [1])
        yield s("norm.ScalarOpt_dim", x, order, [0, 2], True)
        yield s("norm.Scalar", x, order)
        yield s("dist", f(3, 4), f(4), order)
        yield s("dist", f(3, 1), f(1, 5), order)
    yield s("linalg_vector_norm", f(3, 4, dtype=half), 2, [1])
    yield s("linalg_vector_norm", f(3, 4, dtype=half), 2, [1], dtype=torch.float32)
    yield s("linalg_vector_norm", c(3, 4), 3, [1])
    yield s("linalg_vector_norm", c(3, 4), math.inf, [1])
    yield s("norm.ScalarOpt_dim_dtype", f(3, 4, dtype=half), 2, [1], False, dtype=torch.float32)
    yield s("norm.ScalarOpt_dtype", f(3, 4, dtype=half), None, dtype=torch.float32)
    yield s("dist", f(), f())
    for order in (1, 2, math.inf):
        yield s("renorm", x, order, 1, 2.0)
        yield s("renorm", f(3, 4), order, -2, 0.5)
    for dim in (0, 2):
        g = f(3, 1, 1) if dim == 0 else f(1, 1, 5)
        yield s("_weight_norm_interface", x, g, dim)
        _, sizes = torch.ops.aten._weight_norm_interface(x, g, dim)
        yield s("_weight_norm_interface_backward", x + 1, x, g, sizes, dim)


def searches() -> Iterator[Sample]:
    """Yields samples of reductions to an index."""
    ties = i(4, 5, low=0, high=2)
    for name in ("argmax", "argmin"):
        for x in (f(3, 4, 5), ties, SPECIAL, f(3, 4, dtype=torch.float16)):
            yield s(name, x)
            yield s(name, x, None, True)
            yield s(name, x, 0)
            yield s(name, x, -1, True)
        yield s(name, f(), 0)
        yield s(name, f())
    for name in ("max.dim", "min.dim"):
        for x in (f(3, 4, 5), ties, ties.bool(), SPECIAL, f(3, 4, dtype=torch.bfloat16)):
            yield s(name, x, 0)
            yield s(name, x, -1, True)
        yield s(name, f(0, 3), 1)
        yield s(name, f(), 0)


def statistics() -> Iterator[Sample]:
    """Yields samples of variances and the like."""
    x = f(3, 4, 5)
    for name in ("var", "std", "var_mean", "std_mean"):
        yield s(f"{name}.correction", c(3, 4), [1])
        yield s(f"{name}.correction", f(3, 4, dtype=torch.bfloat16), [1])
        yield s(f"{name}.correction", SPECIAL, [1])
        yield s(f"{name}.correction", x, [1], correction=1, keepdim=True)
        yield s(f"{name}.correction", x, [0, 2], correction=0)
        yield s(f"{name}.correction", x)
        yield s(f"{name}.dim", x, [1], False)
    yield s("var.dim", f(3, 1), [1])
    yield s("logsumexp", x, [1])
    yield s("logsumexp", x, [0, 1], True)
    yield s("logsumexp", c(3, 4), [1])
    yield s("logsumexp", SPECIAL, [1])
    yield s("logsumexp", torch.full((2, 3), float("-inf"), dtype=torch.float64), [1])


def along() -> Iterator[Sample]:
    """Yields samples of ops along a dimension that isn't split."""
    x = f(3, 4, 5)
    for dim in (0, -1):
        for name in ("median.dim", "nanmedian.dim"):
            yield s(name, x, dim)
            yield s(name, x, dim, True)
        for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
            yield s(name, x, dim)
        yield s("sort", x, dim)
        yield s("sort.stable", x, stable=True, dim=dim, descending=True)
        yield s("argsort", x, dim)
        yield s("topk", x, 2, dim)
    yield s("topk", f(4, 3), 3)
    yield s("kthvalue", x, 2)
    yield s("mode", i(3, 7))
    yield s("cumsum", f(5), 0, dtype=torch.float32)
    yield s("glu", f(3, 4))


def scalars() -> Iterator[Sample]:
    """Yields samples of ops that go along the one dimension that torch lends to a scalar."""
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort"):
        yield s(name, f(), 0)
    yield s("topk", f(), 1, -1)
    yield s("_softmax", f(), 0, False)
    yield s("_safe_softmax", f(), -1)
    for name in ("sum.dim_IntList", "mean.dim", "amax", "logsumexp", "linalg_vector_norm"):
        yield s(name, f(), dim=[0])
    yield s("var.correction", f(), [0], correction=0)
    yield s("prod.dim_int", f(), 0)
    yield s("flip", f(), [0])
    yield s("squeeze.dim", f(), 0)
    yield s("squeeze.dims", f(), [-1])
    yield s("unfold", f(), 0, 1, 1)
