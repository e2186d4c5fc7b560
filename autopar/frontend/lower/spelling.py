"""How programs spell what torch has: dtypes, kinds of ops, and ops that differ in strides only."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from autopar.ir.dtypes import HALVES, TORCH_NAMES
from autopar.ir.emitted import MARK
from autopar.ir.ops.loops import CARRY, LEAVES, PARTS, TAKE
from autopar.ir.ops.losses.alignment import CTC, CTC_GRADIENT
from autopar.ir.ops.products.recurrent import GRADIENT, RECURRENT

IR_DTYPES: Mapping[torch.dtype, str] = {
    getattr(torch, there): name for name, there in TORCH_NAMES.items()
}
"""The IR's name of each torch dtype."""

TORCH_HALVES = frozenset(getattr(torch, TORCH_NAMES[name]) for name in HALVES)
"""The torch dtypes of 16 bits."""

RENAMED: Mapping[str, str] = {
    "aten._unsafe_view.default": "aten.view.default",
    "aten.reshape.default": "aten.view.default",
    "aten._reshape_alias.default": "aten.view.default",
    "aten.empty_strided.default": "aten.empty.memory_format",
    "aten.empty_permuted.default": "aten.empty.memory_format",
    "aten.new_empty_strided.default": "aten.empty.memory_format",
    "aten.new_empty.default": "aten.empty.memory_format",
    "aten.new_zeros.default": "aten.zeros.default",
    "aten.new_ones.default": "aten.ones.default",
    "aten.new_full.default": "aten.full.default",
    "aten._efficientzerotensor.default": "aten.zeros.default",
    **{
        f"{kind}.default": kind
        for kind in (RECURRENT, GRADIENT, CTC, CTC_GRADIENT, CARRY, TAKE, PARTS, *LEAVES)
    },
    # A mark that stays (see `autopar.frontend.lower.marks`).
    MARK: "aten.alias.default",
}
"""Ops that differ in aliasing or strides only, or don't read what they are given, and the ones that
stand for them."""

RENAMED_ARGUMENTS: Mapping[str, str | None] = {
    "aten.reshape.default.shape": "size",
    "aten._reshape_alias.default.stride": None,
    "aten.empty_strided.default.stride": None,
    "aten.empty_permuted.default.physical_layout": None,
    "aten.new_empty_strided.default.stride": None,
    **{f"aten.new_{name}.default.self": None for name in ("empty", "zeros", "ones", "full")},
    "aten.new_empty_strided.default.self": None,
    f"{MARK}.x": "self",
    f"{MARK}.spec": None,
}
"""Arguments of these ops that are called otherwise by those, or that they don't have."""

SIZES: Mapping[str, str] = {"aten.view.default": "size", "aten.expand.default": "size"}
"""Arguments that spell the shape of the result, and may say -1 in it."""


def kind_of(node: fx.Node) -> str:
    """Returns the op kind of a node: namespace, name and overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._opname}.{target._overloadname}"
    return str(getattr(target, "__name__", target))
