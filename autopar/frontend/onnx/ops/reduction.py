"""Reductions, arg-reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from autopar.frontend.onnx.ops.shape.layout import as_axes, as_ints
from autopar.frontend.onnx.trace.node import Array, Node, Refused
from autopar.frontend.onnx.trace.values import Translation

Reduce = Callable[[torch.Tensor, list[int], bool], torch.Tensor]


def _reduction(function: Reduce) -> Translation:
    def run(node: Node, x: torch.Tensor, axes: Array | None = None) -> torch.Tensor:
        given = as_ints(axes) if axes is not None else node.integers("axes")
        if not given:
            if node.flag("noop_with_empty_axes"):
                return function(x.unsqueeze(0), [0], False) if function in _APPLIED else x
            given = list(range(x.ndim))
        dims = as_axes(given, x.ndim)
        keep = node.flag("keepdims", True)
        if not dims:
            return function(x.reshape(1), [0], False).reshape(())
        return function(x, dims, keep)

    return Translation(run, static=(1,))


def _sum(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    return torch.sum(x, dims, keep, dtype=x.dtype)


def _mean(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    if x.dtype.is_floating_point:
        return torch.mean(x, dims, keep)
    count = x.numel() // max(1, torch.sum(x, dims, keep).numel())
    return torch.div(torch.sum(x, dims, keep), count, rounding_mode="trunc").to(x.dtype)


def _prod(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim, keep, dtype=x.dtype)
    return x


def _max(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    return _extreme(x, dims, keep, torch.amax, False)


def _min(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    return _extreme(x, dims, keep, torch.amin, True)


def _extreme(
    x: torch.Tensor, dims: list[int], keep: bool, function: Callable[..., torch.Tensor], low: bool
) -> torch.Tensor:
    if any(x.shape[dim] == 0 for dim in dims):
        return torch.full_like(torch.sum(x, dims, keep, dtype=x.dtype), _limit(x.dtype, low))
    return function(x, dims, keep)


def _limit(dtype: torch.dtype, high: bool) -> float | int | bool:
    """Returns the identity of min (`high`) or max."""
    if dtype == torch.bool:
        return high
    if dtype.is_floating_point:
        return float("inf") if high else float("-inf")
    return torch.iinfo(dtype).max if high else torch.iinfo(dtype).min


def _l1(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    return _sum(x.abs(), dims, keep)


def _l2(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    wide = x if x.dtype.is_floating_point else x.to(torch.float64)
    return torch.sqrt(torch.sum(wide * wide, dims, keep)).to(x.dtype)


def _log_sum(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    wide = x if x.dtype.is_floating_point else x.to(torch.float64)
    return torch.log(torch.sum(wide, dims, keep)).to(x.dtype)


def _log_sum_exp(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    if any(x.shape[dim] == 0 for dim in dims):
        return torch.log(torch.sum(torch.exp(x), dims, keep))
    wide = x if x.dtype.is_floating_point else x.to(torch.float64)
    return torch.logsumexp(wide, dims, keep).to(x.dtype)


def _sum_square(x: torch.Tensor, dims: list[int], keep: bool) -> torch.Tensor:
    return _sum(x * x, dims, keep)


_APPLIED = (_l1, _l2, _log_sum, _log_sum_exp, _sum_square)
"""Reductions that do something to each element even if nothing is reduced."""


def _arg(function: Callable[..., torch.Tensor]) -> Translation:
    def run(node: Node, x: torch.Tensor) -> torch.Tensor:
        axis = as_axes([node.integer("axis", 0)], x.ndim)[0]
        keep = node.flag("keepdims", True)
        if x.shape[axis] == 0:
            raise Refused(f"axis {axis} of shape {list(x.shape)} is empty")
        if not node.flag("select_last_index"):
            return function(x, axis, keep)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keep)

    return Translation(run)


TABLE: Mapping[str, Translation] = {
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "ReduceL1": _reduction(_l1),
    "ReduceL2": _reduction(_l2),
    "ReduceLogSum": _reduction(_log_sum),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_max),
    "ReduceMean": _reduction(_mean),
    "ReduceMin": _reduction(_min),
    "ReduceProd": _reduction(_prod),
    "ReduceSum": _reduction(_sum),
    "ReduceSumSquare": _reduction(_sum_square),
}
