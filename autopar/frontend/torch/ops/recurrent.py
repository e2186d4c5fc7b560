"""Keeps recurrent layers whole while a model is traced: calls of torch become the op of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.frontend.lower.recurrent import recurrent_layers
from autopar.ir.ops.products.recurrent import STATES


def _rewritten(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls an op of our own where a model calls recurrent layers."""
    return _layers(func.__name__, *args) if _is_known(args, kwargs) else NotImplemented


REWRITES = {getattr(torch, mode): _rewritten for mode in STATES}
"""Functions of torch that are calls of that op."""


def _is_known(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is that of layers over padded sequences that computes in its own dtype."""
    padded = len(args) == 9 and isinstance(args[3], bool) and args[0].ndim == 3
    return padded and not kwargs and not torch.is_autocast_enabled(args[0].device.type)


def _layers(
    mode: str,
    input: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    state = [hx] if isinstance(hx, Tensor) else list(hx)
    options = (has_biases, bidirectional, batch_first)
    if not (train and dropout) or num_layers == 1:
        return recurrent_layers(mode, input, state, params, num_layers, *options)
    # What is dropped between layers is drawn by an op of its own.
    last: list[list[Tensor]] = []
    directions = 2 if bidirectional else 1
    for at in range(num_layers):
        own = [each[at * directions :][:directions] for each in state]
        weights = params[at * len(params) // num_layers :][: len(params) // num_layers]
        dropped = torch.dropout(input, dropout, True) if at else input
        input, *found = recurrent_layers(mode, dropped, own, weights, 1, *options)
        last.append(found)
    return (input, *(torch.cat(each) for each in zip(*last, strict=True)))
