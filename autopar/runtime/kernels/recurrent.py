"""Recurrent layers: torch's own kernels, which take all steps of all layers at once.

What these kernels keep for the gradient has a form of their own, which can't be split. So the
gradient begins with the forward pass, under autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.ir.ops.products.recurrent import GRADIENT, RECURRENT


def recurrent(
    mode: str,
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Returns the last layer's outputs and the last state.

    Args:
        mode: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
        input: The sequences, [t, n, i] or with `batch_first` [n, t, i].
        state: The first state: hidden, and of an LSTM the cells, [layers, n, h].
        params: The weights and biases of each layer and direction, as torch orders them.
        has_biases: Whether there are biases.
        num_layers: How many layers there are.
        bidirectional: Whether each has a direction backwards, too.
        batch_first: Whether the batch is the first dimension of sequences.
    """
    first = list(state) if mode == "lstm" else state[0]
    function = getattr(torch, mode)
    options = (has_biases, num_layers, 0.0, torch.is_grad_enabled(), bidirectional, batch_first)
    return tuple(function(input, first, list(params), *options))


def recurrent_backward(
    mode: str,
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    needs: Sequence[bool],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    """Returns the gradients of what is needed: of the input, of the state, of the parameters.

    Args:
        gradients: Those of the results; None for one that nobody reads.
        needs: Which of the three are needed.

    The other arguments are those of `recurrent`.
    """
    groups = ([input], list(state), list(params))
    given = [
        [each.detach().requires_grad_(needed) for each in group]
        for group, needed in zip(groups, needs, strict=True)
    ]
    with torch.enable_grad():
        (source,), start, weights = given
        options = (has_biases, num_layers, bidirectional, batch_first)
        results = recurrent(mode, source, start, weights, *options)
    wanted = [each for group, need in zip(given, needs, strict=True) if need for each in group]
    read = [pair for pair in zip(results, gradients, strict=True) if pair[1] is not None]
    found = torch.autograd.grad(
        [result for result, _ in read],
        wanted,
        [gradient for _, gradient in read],
        materialize_grads=True,
        allow_unused=True,
    )
    return list(found)


RECURRENCES: Mapping[str, Callable[..., Any]] = {RECURRENT: recurrent, GRADIENT: recurrent_backward}
"""The function behind each kind."""
