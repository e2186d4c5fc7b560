"""Inputs and outputs as ONNX Runtime describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autopar.ir.dtypes import TORCH_NAMES
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Port

_OTHERWISE = {"f32": "float", "f64": "double"}
"""The dtypes that ONNX calls otherwise than torch does."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a session.

    Attributes:
        name: Its name.
        shape: A number per dimension, or the name of one that is open, or how it follows from
            others: `past + length`.
        type: As ONNX Runtime writes it: `tensor(float)`.
    """

    name: str
    shape: list[int | str]
    type: str


def described(ports: Iterable[Port]) -> list[NodeArg]:
    """Returns descriptions of inputs or outputs."""
    return [
        NodeArg(port.user_label, [_dim(size) for size in port.shape], _type(port.dtype))
        for port in ports
    ]


def _dim(size: IntExpr) -> int | str:
    return size if isinstance(size, int) else str(size).replace("$", "")


def _type(dtype: str) -> str:
    return f"tensor({_OTHERWISE.get(dtype) or TORCH_NAMES[dtype].replace('_', '')})"
