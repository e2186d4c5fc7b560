"""What common ops return where sizes are open: torch takes long to be sure, or can't be.

It asks of each result whether it is dense, in which order, and whether sizes are 1 or 0. Here only
shapes and dtypes count, and results of pointwise ops, norms and views are taken to be contiguous.
Whatever isn't plain is left to torch, also what is to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from autopar.frontend.lower.asking import is_sure
from autopar.frontend.lower.open_sizes import OpenSizes, is_static
from autopar.frontend.lower.symbols import SymSize, Unexpressed
from autopar.ir.expr.expression import IntExpr, prod

Shape = Sequence[SymSize]


class OpenResults:
    """Results of ops, as fake tensors.

    Args:
        mode: What makes these.
        sizes: The open sizes in their shapes.
    """

    def __init__(self, mode: FakeTensorMode, sizes: OpenSizes) -> None:
        self._mode = mode
        self._sizes = sizes
        self._metas: dict[object, torch.Tensor] = {}

    def of(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Returns the result of an op; None if it is left to torch."""
        if not any(map(_is_open, args)):
            return None
        if func in _VIEWS:
            return None if kwargs else self._view(*args)
        if func in _SHAPED:
            return None if kwargs else _SHAPED[func](*args)
        if func is torch.ops.aten.native_layer_norm.default:
            return self._layer_norm(*args)
        return self._pointwise(func, args, kwargs) if _is_pointwise(func) else None

    def _view(self, tensor: torch.Tensor, sizes: Shape) -> torch.Tensor | None:
        """Returns a view; None if the elements aren't always as many."""
        try:
            if self._count(tensor.shape) - self._count(sizes) != 0:
                return None
        except Unexpressed:
            return None
        return self._fake(sizes, tensor.dtype)

    def _count(self, shape: Shape) -> IntExpr:
        return prod(map(self._sizes.expr, shape))

    def _pointwise(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> torch.Tensor | None:
        tensors = _tensors(args)
        shape = _broadcast([tensor.shape for tensor in tensors])
        if shape is None or len(tensors) < sum(map(_may_hold_tensors, args)):
            return None
        with unset_fake_temporarily():
            # Of the same dtypes and ranks, on which the result's dtype depends.
            small = [_small(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
            dtype = func(*small, **kwargs).dtype
        return self._fake(shape, dtype)

    def _layer_norm(
        self,
        tensor: torch.Tensor,
        shape: Shape,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, ...] | None:
        given = [each for each in (tensor, weight, bias) if each is not None]
        within = tensor.shape[-len(shape) :]
        if {each.dtype for each in given} != {tensor.dtype} or not _are_same(within, shape):
            return None
        rows = (*tensor.shape[: -len(shape)], *(1 for _ in shape))
        exact = torch.float32 if tensor.dtype.itemsize < torch.float32.itemsize else tensor.dtype
        return (self._fake(tensor.shape, tensor.dtype), *(self._fake(rows, exact) for _ in "mr"))

    def _fake(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        key = (dtype, *map(_key, shape))
        with unset_fake_temporarily():
            if key not in self._metas:
                self._metas[key] = torch.empty(shape, dtype=dtype, device="meta")
            return FakeTensor(self._mode, self._metas[key], torch.device("cpu"))


def _is_open(argument: Any) -> bool:
    if isinstance(argument, torch.Tensor):
        return not is_static(argument)
    if isinstance(argument, (list, tuple)):
        return any(map(_is_open, argument))
    return isinstance(argument, torch.SymInt)


def _sliced(
    tensor: torch.Tensor,
    dim: int = 0,
    start: SymSize | None = None,
    end: SymSize | None = None,
    step: int = 1,
) -> torch.Tensor | None:
    """Returns None if the bounds aren't known to be within the dimension, and in order."""
    size = tensor.shape[dim]
    first, last = 0 if start is None else start, size if end is None else end
    if is_sure(last >= size):
        last = size
    if not (is_sure(first >= 0) and is_sure(first <= last) and is_sure(last <= size)):
        return None
    shape, strides = list(tensor.shape), list(tensor.stride())
    shape[dim], strides[dim] = (last - first + step - 1) // step, strides[dim] * step
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _resized(tensor: torch.Tensor, wanted: Sequence[SymSize], *_how: Any) -> torch.Tensor:
    shape = (*tensor.shape[: tensor.ndim - len(wanted)], *wanted)
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


_SHAPED: Mapping[Any, Callable[..., torch.Tensor | None]] = {
    torch.ops.aten.slice.Tensor: _sliced,
    torch.ops.aten.upsample_nearest1d.default: _resized,
    torch.ops.aten.upsample_nearest2d.default: _resized,
    torch.ops.aten.upsample_nearest3d.default: _resized,
    torch.ops.aten.upsample_linear1d.default: _resized,
    torch.ops.aten.upsample_bilinear2d.default: _resized,
    torch.ops.aten.upsample_trilinear3d.default: _resized,
    torch.ops.aten.upsample_bicubic2d.default: _resized,
}
"""What finds the result of an op of sizes."""

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags and len(func._schema.returns) == 1


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    return [arg for arg in args if isinstance(arg, torch.Tensor)]


def _may_hold_tensors(arg: Any) -> bool:
    """Returns whether an argument is a tensor, or what isn't looked into here."""
    return isinstance(arg, (torch.Tensor, torch.SymInt, list, tuple))


def _small(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty((1,) * tensor.ndim, dtype=tensor.dtype, device="meta")


def _key(size: SymSize) -> object:
    return size if isinstance(size, int) else size.node.expr


def _are_same(one: Shape, other: Shape) -> bool:
    return list(map(_key, one)) == list(map(_key, other))


def _broadcast(shapes: Sequence[Shape]) -> list[SymSize] | None:
    """Returns the shape of a result; None if sizes differ, or may."""
    rank = max(map(len, shapes))
    found: list[SymSize] = [1] * rank
    for shape in shapes:
        for at, size in enumerate(shape, rank - len(shape)):
            if _key(found[at]) == 1:
                found[at] = size
            elif _key(size) not in (1, _key(found[at])):
                return None
    return found
