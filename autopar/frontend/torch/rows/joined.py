"""Lists that hold tensors and become one, without asking for their values.

    torch.tensor([h.max(), 2.0])         picked[list(rows), list(columns)]

Torch reads each as a number. While a model is captured these aren't known, and needn't be: what is
made is a stack of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def _rewritten(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Stacks the numbers of which code makes a tensor."""
    return _joined(*args, **kwargs) if len(args) == 1 and _is_joined(args[0]) else NotImplemented


REWRITES = {torch.tensor: _rewritten}
"""Functions that make tensors of lists."""


def without_lists(index: Any) -> Any:
    """Returns an index with a tensor for each list of numbers in it that are tensors."""
    if not isinstance(index, tuple):  # Torch takes a list alone for a tuple, if it is short.
        return index
    return tuple(_joined(each) if _is_joined(each) else each for each in index)


def _is_joined(data: Any) -> bool:
    """Whether data is a list with tensors of one element in it, and other numbers maybe."""
    if not isinstance(data, list | tuple):
        return False
    tensors = [leaf for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)]
    return bool(tensors) and all(each.numel() == 1 for each in tensors)


def _joined(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    leaves = [_number(leaf) for leaf in pytree.tree_leaves(data)]
    common = dtype or reduce(torch.promote_types, [each.dtype for each in leaves])
    found = iter([each.to(common) for each in leaves])
    return _stacked(data, found).requires_grad_(requires_grad)


def _number(leaf: Any) -> Tensor:
    return leaf.detach().reshape(()) if isinstance(leaf, Tensor) else torch.tensor(leaf)


def _stacked(data: Any, leaves: Any) -> Tensor:
    if not isinstance(data, list | tuple):
        found: Tensor = next(leaves)
        return found
    return torch.stack([_stacked(each, leaves) for each in data])
