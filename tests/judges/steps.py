"""Takes the steps of a captured training program on one device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autopar.frontend.torch import Captured
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.kernels.table import TORCH_DTYPES


class Steps:
    """Takes the steps of a captured program on one device."""

    def __init__(self, captured: Captured) -> None:
        self.program = captured.program
        self.labels = captured.structure.labels
        self.stored = stored_values(captured)

    def take(self, batch: Any, **more: Any) -> Tensor:
        inputs = dict(zip(self.labels, pytree.tree_leaves(batch), strict=True))
        self.outputs = run_serial(self.program, self.stored, {**inputs, **more})
        labels = {port.name: port.label for port in self.program.signature.outputs}
        self.stored.update(
            {old: self.outputs[labels[new]] for new, old in self.program.main.aliases}
        )
        return self.outputs["loss"]


def stored_values(captured: Captured) -> dict[str, Tensor]:
    """Returns the values of all that a program stores, in memory of their own."""
    values = {name: tensor.clone() for name, tensor in captured.weights.items()}
    for port in captured.program.signature.inputs:
        if port.role == "optimizer_state" and port.fill is not None:
            dtype = TORCH_DTYPES[port.dtype]
            values[port.name] = torch.full(port.shape, port.fill, dtype=dtype)
    return values
