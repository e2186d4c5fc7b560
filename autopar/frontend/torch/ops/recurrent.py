"""Keeps recurrent layers whole while a model is traced.

Torch takes them apart into an op per step and gate, which for a hundred steps are thousands of ops
that can't be split otherwise than all together; or calls a kernel whose gradient needs what only
that kernel can read. Here they become an op of their own, with a gradient that is one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.ir.ops.products.recurrent import STATES

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
        return _called(mode, input, state, params, num_layers, *options)
    # What is dropped between layers is drawn by an op of its own.
    last: list[list[Tensor]] = []
    directions = 2 if bidirectional else 1
    for at in range(num_layers):
        own = [each[at * directions :][:directions] for each in state]
        weights = params[at * len(params) // num_layers :][: len(params) // num_layers]
        dropped = torch.dropout(input, dropout, True) if at else input
        input, *found = _called(mode, dropped, own, weights, 1, *options)
        last.append(found)
    return (input, *(torch.cat(each) for each in zip(*last, strict=True)))


def _called(
    mode: str,
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    call: Callable[..., Sequence[Tensor]] = torch.ops.autopar.recurrent
    options = (has_biases, num_layers, bidirectional, batch_first)
    return tuple(call(mode, input, list(state), list(params), *options))
