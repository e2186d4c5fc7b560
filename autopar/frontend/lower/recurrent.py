"""Recurrent layers as an op of our own, with a gradient that is one, too.

Torch takes them apart into an op per step and gate, which for a hundred steps are thousands of ops
that can't be split otherwise than all together; or calls a kernel whose gradient needs what only
that kernel can read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

torch.library.define(
    "autopar::recurrent",
    "(str mode, Tensor input, Tensor[] state, Tensor[] params, bool has_biases, int num_layers,"
    " bool bidirectional, bool batch_first) -> Tensor[]",
)
torch.library.define(
    "autopar::recurrent_backward",
    "(str mode, Tensor input, Tensor[] state, Tensor[] params, Tensor?[] gradients, bool[] needs,"
    " bool has_biases, int num_layers, bool bidirectional, bool batch_first)"
    " -> Tensor[]",
)


def _fake(
    mode: str,
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    features = state[0].shape[-1] * (2 if bidirectional else 1)
    outputs = input.new_empty((*input.shape[:-1], features))
    return [outputs, *(torch.empty_like(each) for each in state)]


def _fake_backward(
    mode: str,
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    needs: Sequence[bool],
    *options: bool | int,
) -> list[Tensor]:
    groups = zip(([input], state, params), needs, strict=True)
    return [torch.empty_like(each) for group, needed in groups if needed for each in group]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    mode, input, state, params, *options = inputs
    ctx.set_materialize_grads(False)
    ctx.mode, ctx.options, ctx.states = mode, options, len(state)
    ctx.save_for_backward(input, *state, *params)


def _backward(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    source, *rest = ctx.saved_tensors
    state, params = rest[: ctx.states], rest[ctx.states :]
    groups = ([source], state, params)
    needs = [any(each.requires_grad for each in group) for group in groups]
    found = iter(
        torch.ops.autopar.recurrent_backward(
            ctx.mode, source, state, params, list(gradients), needs, *ctx.options
        )
    )
    given = [
        [next(found) if needed else None for _ in group]
        for group, needed in zip(groups, needs, strict=True)
    ]
    return (None, given[0][0], given[1], given[2], *(None for _ in ctx.options))


torch.library.register_fake("autopar::recurrent", _fake)
torch.library.register_fake("autopar::recurrent_backward", _fake_backward)
torch.library.register_autograd("autopar::recurrent", _backward, setup_context=_setup_context)


def recurrent_layers(
    mode: str,
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Returns the last layer's outputs and the last state."""
    call: Callable[..., Sequence[Tensor]] = torch.ops.autopar.recurrent
    options = (has_biases, num_layers, bidirectional, batch_first)
    return tuple(call(mode, input, list(state), list(params), *options))
