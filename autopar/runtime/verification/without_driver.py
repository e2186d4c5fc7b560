"""Methods of fake tensors on devices that torch was built without: some ask for a driver there.

Brackets do, `~`, `contiguous` and `copy_`. The ops that they stand for don't, so these are called
instead. Torch itself calls such methods where it finds out what an op returns, out of reach of
modes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

aten = torch.ops.aten


@contextmanager
def without_driver() -> Iterator[None]:
    """Lets fake tensors, within, do without the driver of their device."""
    before = {name: FakeTensor.__dict__[name] for name in _METHODS if name in FakeTensor.__dict__}
    for name, method in _METHODS.items():
        setattr(FakeTensor, name, method)
    try:
        yield
    finally:
        for name in _METHODS:
            if name in before:
                setattr(FakeTensor, name, before[name])
            else:
                delattr(FakeTensor, name)


def _contiguous(x: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    dense = x.is_contiguous(memory_format=memory_format)
    return x if dense else x.clone(memory_format=memory_format)


def _invert(x: Tensor) -> Tensor:
    return x.bitwise_not()


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    found: Tensor = aten.copy_.default(x, source, non_blocking)
    return found


def _set(x: Tensor, index: Any, value: Tensor | float) -> None:
    _copy(_get(x, index), torch.as_tensor(value))


def _get(x: Tensor, index: Any) -> Tensor:
    """Returns the elements of a tensor that an index names; a view, but for indices in tensors."""
    dim, gathered = 0, dict[int, Tensor]()
    for item in _spelled_out(x, index if isinstance(index, tuple) else (index,)):
        if item is None:
            x = x.unsqueeze(dim)
        elif isinstance(item, slice):
            x = aten.slice.Tensor(x, dim, item.start, item.stop, item.step or 1)
        elif isinstance(item, int):
            x = x.select(dim, item)
            continue
        else:
            gathered[dim] = torch.as_tensor(item)
        dim += 1
    if not gathered:
        return x
    found: Tensor = aten.index.Tensor(x, [gathered.get(at) for at in range(dim)])
    return found


def _spelled_out(x: Tensor, items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns an index with whole dimensions in the place of dots."""
    at = next((at for at, item in enumerate(items) if item is Ellipsis), None)
    if at is None:
        return items
    missing = x.ndim - sum(item is not None and item is not Ellipsis for item in items)
    return (*items[:at], *[slice(None)] * missing, *items[at + 1 :])


_METHODS = {
    "__getitem__": _get,
    "__setitem__": _set,
    "__invert__": _invert,
    "contiguous": _contiguous,
    "copy_": _copy,
}
"""What takes the place of a method."""
