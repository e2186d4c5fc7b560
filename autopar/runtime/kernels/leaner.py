"""Kernels that take less memory than torch's own on a CPU, and compute the same to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from autopar.ir.ops.shape.strided import DROPOUT_BACKWARD


def dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """aten.native_dropout_backward, whose kernel on CPUs takes a second tensor as large."""
    return (grad_output * mask).mul_(scale)


LEANER: Mapping[str, Callable[..., Tensor]] = {DROPOUT_BACKWARD: dropout_backward}
