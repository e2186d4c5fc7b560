"""Losses of sequences that are aligned with shorter ones: torch's kernels, as ops of our own.

What torch's forward pass keeps for the gradient has the size of the longest target, which is known
when it runs. So nothing is kept, and the forward pass is part of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from autopar.ir.ops.losses.alignment import CTC, CTC_GRADIENT

aten = torch.ops.aten


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """Returns the loss of each sequence, [b].

    Args:
        log_probs: [t, b, c].
        targets: [b, s], of each as much as its length says.
        input_lengths: [b].
        target_lengths: [b].
        blank: The class that stands for nothing.
        zero_infinity: Whether the loss of what can't be aligned is 0.
    """
    if not len(targets):
        return log_probs.new_empty(0)
    lengths = input_lengths, target_lengths
    found: Tensor = aten._ctc_loss.Tensor(log_probs, targets, *lengths, blank, zero_infinity)[0]
    return found.masked_fill(found == torch.inf, 0.0) if zero_infinity else found


def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """Returns the gradient of `log_probs` from that of the losses; see `ctc_loss`."""
    if not len(targets):
        return torch.empty_like(log_probs, memory_format=torch.contiguous_format)
    given = log_probs, targets, input_lengths, target_lengths
    kept = aten._ctc_loss.Tensor(*given, blank, zero_infinity)
    found: Tensor = aten._ctc_loss_backward.Tensor(grad, *given, *kept, blank, zero_infinity)
    return found.contiguous()


ALIGNMENTS: Mapping[str, Callable[..., Any]] = {CTC: ctc_loss, CTC_GRADIENT: ctc_loss_backward}
"""The function behind each kind."""
