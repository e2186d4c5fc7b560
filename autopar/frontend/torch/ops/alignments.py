"""Keeps losses of aligned sequences whole while a model is traced.

Torch's own op returns, for its gradient, a tensor whose size depends on the lengths of the targets.
Here it becomes an op that returns losses only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from autopar.frontend.lower.spelling import TORCH_HALVES

_GIVEN = (
    "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank,"
    " bool zero_infinity"
)
torch.library.define("autopar::ctc_loss", f"({_GIVEN}) -> Tensor")
torch.library.define("autopar::ctc_loss_backward", f"(Tensor grad, {_GIVEN}) -> Tensor")


def _fake(log_probs: Tensor, *rest: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


def _fake_backward(grad: Tensor, log_probs: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, blank, zero_infinity = inputs
    ctx.save_for_backward(*tensors)
    ctx.options = (blank, zero_infinity)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    found = torch.ops.autopar.ctc_loss_backward(grad, *ctx.saved_tensors, *ctx.options)
    return (found, *[None] * 5)


torch.library.register_fake("autopar::ctc_loss", _fake)
torch.library.register_fake("autopar::ctc_loss_backward", _fake_backward)
torch.library.register_autograd("autopar::ctc_loss", _backward, setup_context=_setup_context)


def _rewritten(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls an op of our own where a model calls `ctc_loss` on a batch."""
    return _ctc_loss(*args, **kwargs) if args[0].ndim == 3 else NotImplemented


REWRITES = {F.ctc_loss: _rewritten}
"""Functions of torch that are calls of that op."""


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    if torch.is_autocast_enabled(log_probs.device.type) and log_probs.dtype in TORCH_HALVES:
        # Torch does so with its own op.
        log_probs = log_probs.float()
    given, wanted = (_lengths(each) for each in (input_lengths, target_lengths))
    rows = targets if targets.ndim == 2 else _rows(targets, wanted)
    options = (blank, zero_infinity)
    losses: Tensor = torch.ops.autopar.ctc_loss(log_probs, rows.long(), given, wanted, *options)
    if reduction == "mean":
        return (losses / wanted.clamp(min=1)).mean()
    return losses.sum() if reduction == "sum" else losses


def _lengths(given: Tensor | Sequence[int]) -> Tensor:
    return given.long() if isinstance(given, Tensor) else torch.tensor(given)


def _rows(targets: Tensor, lengths: Tensor) -> Tensor:
    """Returns targets that follow one another as rows of the longest one's length."""
    starts = lengths.cumsum(0) - lengths
    places = starts[:, None] + torch.arange(int(lengths.max()))
    return targets[places.clamp(max=max(len(targets) - 1, 0))]
