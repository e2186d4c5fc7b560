"""Functions of each element over operands that nobody else reads: nothing is allocated for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from autopar.ir.memory.kernels import may_alias
from autopar.ir.ops.shape.view import RESHAPES
from autopar.ir.ops.tuning import OVER, SCALED, SHIFTED
from autopar.runtime.tuned.graph import Tuning, arguments_of, kind_of, same_type

_HOMES = (torch._C.TensorBase, torch._C._nn)


def write_over_operands(tuning: Tuning) -> None:
    """Lets functions of each element write over their first operand where that is safe."""
    for node in tuning.of_kind(OVER):
        written = _written(OVER[kind_of(node)])
        if written is None:
            continue
        first, *others = arguments_of(node)
        if _may_be_lost(tuning, first, node):
            node.target = written
        elif _may_be_swapped(node) and _may_be_lost(tuning, others[0], node):
            node.target, node.args = written, (others[0], first)


def _may_be_swapped(node: fx.Node) -> bool:
    return kind_of(node) in SHIFTED | SCALED and not node.kwargs


def _may_be_lost(tuning: Tuning, operand: Any, node: fx.Node) -> bool:
    return _is_alike(node, operand) and _is_free(tuning, operand, node)


def _is_alike(node: fx.Node, operand: Any) -> bool:
    known = isinstance(operand, fx.Node) and "value" in operand.meta
    return known and same_type(node, operand)


def _is_free(tuning: Tuning, operand: fx.Node, node: fx.Node) -> bool:
    """Returns whether nobody reads what is in the memory of an operand after a node."""
    while kind_of(operand) in RESHAPES and len(operand.users) == 1:
        node, operand = operand, arguments_of(operand)[0]
    if not kind_of(operand) or tuning.is_constant(operand) or may_alias(kind_of(operand)):
        return False
    return all(_reads_before(each, node) for each in operand.users if each is not node)


def _reads_before(reader: fx.Node, node: fx.Node) -> bool:
    """Returns whether a node has read its operands, and keeps none of them, when another runs."""
    return bool(kind_of(reader)) and not may_alias(kind_of(reader)) and bool(reader < node)


def _written(name: str) -> Any:
    homes = (home for home in _HOMES if hasattr(home, name))
    return next((getattr(home, name) for home in homes), None)
