"""Kernels that take less memory than torch's own on a CPU, and compute the same to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from autopar.ir.ops.shape.strided import DROPOUT_BACKWARD, MASK_AT_ONCE


def dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """aten.native_dropout_backward, which makes numbers of the whole mask.

    So does any product with one. Here a piece of it is made into numbers at a time.
    """
    if torch.compiler.is_compiling():
        return (grad_output * mask).mul_(scale)
    is_flat = grad_output.is_contiguous() and mask.is_contiguous()
    if not is_flat or grad_output.numel() <= MASK_AT_ONCE:
        return (grad_output * mask.to(grad_output.dtype)).mul_(scale)
    found = torch.empty_like(grad_output)
    gradient, kept, flat = (each.view(-1) for each in (grad_output, mask, found))
    for begin in range(0, found.numel(), MASK_AT_ONCE):
        piece = slice(begin, begin + MASK_AT_ONCE)
        # By no name, by which it would be there until the next piece is.
        torch.mul(gradient[piece], kept[piece].to(gradient.dtype), out=flat[piece]).mul_(scale)
    return found


LEANER: Mapping[str, Callable[..., Tensor]] = {DROPOUT_BACKWARD: dropout_backward}
