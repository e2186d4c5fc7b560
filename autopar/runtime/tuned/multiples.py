"""Numbers that tensors are multiplied by, and that are added then: one kernel in place of two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from autopar.ir.ops.tuning import SCALED, SHIFTED
from autopar.runtime.tuned.graph import (
    DTYPE,
    Tuning,
    arguments_of,
    is_number,
    kind_of,
    reader_of,
    same_type,
    value_of,
)


def add_multiples(tuning: Tuning) -> None:
    """Lets one kernel multiply by a number and add another one.

    Whether both write over their operands has been decided.
    """
    for node in tuning.of_kind(SHIFTED):
        product, shift = _with_number(node)
        if product is None or kind_of(product) not in SCALED or reader_of(product) is not node:
            continue
        tensor, scale = _with_number(product)
        if tensor is None or value_of(node).dtype != DTYPE or not same_type(node, tensor):
            continue
        node.target = _FUNCTIONS[product.target is torch.Tensor.mul_]
        number = tuning.constant(node, number_tensor, shift)
        number.meta["bytes"] = 0
        node.args = (tensor, scale, number)
        tuning.graph.erase_node(product)


def _with_number(node: fx.Node) -> tuple[fx.Node | None, Any]:
    """Returns the tensor and the number that a node adds or multiplies; None if it doesn't."""
    first, *others = (*arguments_of(node), None)
    known = isinstance(first, fx.Node) and "value" in first.meta and not node.kwargs
    return (first, others[0]) if known and is_number(others[0]) else (None, None)


def number_tensor(number: float) -> Tensor:
    """Returns a number as kernels take it without making a tensor of it in each call."""
    return torch.tensor(number, dtype=torch.float32)


def multiple_plus(tensor: Tensor, scale: float, shift: Tensor) -> Tensor:
    """Returns a tensor multiplied by a number, and another one added, which is a tensor itself."""
    return torch.add(shift, tensor, alpha=scale)


def multiple_plus_(tensor: Tensor, scale: float, shift: Tensor) -> Tensor:
    """Multiplies a tensor by a number and adds another one."""
    return torch.add(shift, tensor, alpha=scale, out=tensor)


_FUNCTIONS = {False: multiple_plus, True: multiple_plus_}
"""By whether the operand is written over."""
