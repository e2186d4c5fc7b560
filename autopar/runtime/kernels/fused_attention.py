"""Attention and its gradient by the fused kernel of the device: ops of our own.

They take and return what the CPU's kernels do, on any device: the logarithms of sums of
exponentials are [batch, heads, length], and 0 for a query that sees no key. On a GPU, torch's ops
want more: heads and rows of masks at multiples of 16 bytes, a head of the keys for each query,
sums up to a multiple of 32 and infinite where there is nothing to be found. All that is added here
and taken away again, and changes nothing: a head's zeros add zeros to its scores.

Dropout within attention is another matter. Kernels draw bits of their own there, on which devices,
and meshes, don't agree; programs draw theirs (`random_ops`) and have the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from autopar.base.errors import InvalidInputError
from autopar.ir.devices import CPU, CUDA
from autopar.ir.ops.products.attention import ATTENTION
from autopar.ir.ops.products.attention_backward import ATTENTION_BACKWARD
from autopar.ir.ops.products.attention_kernels import (
    ALIGNED_BYTES,
    BY_DEFINITION,
    EFFICIENT_KERNEL,
    FLASH_KERNEL,
    MASK_STEP,
    SUMS_STEP,
    gpu_kernel,
    padded,
)
from autopar.runtime.kernels import attention as definition
from autopar.runtime.kernels.seen_keys import Attended, explicit, seen

aten = torch.ops.aten


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """Returns the attention of queries, and the logarithms of their sums of exponentials.

    Args:
        query, key, value: [batch, heads, length, size]; heads of keys may be fewer.
        dropout_p: 0.
        is_causal: Whether query n sees the keys up to n alone.
        attn_mask: What is added to scores.
        scale: What scores are multiplied by.
        first: The number of the first query.

    Raises:
        InvalidInputError: If it is asked to drop something.
    """
    _check(dropout_p)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key, value = map(_with_rows, (query, key, value))
    part = seen(Attended(query, key, value, is_causal, attn_mask, scale, first))
    call, kernel = _suited(part.call)
    out, sums = _FORWARD[kernel](call)
    return part.all_queries(out), part.all_queries(sums)


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    first: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, keys and values; arguments as of `attention`.

    Sums may be those over more keys than these: each pair of a query and a key is for itself.

    Raises:
        InvalidInputError: If something was to be dropped.
    """
    _check(dropout_p)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    grad_out, query, key, value, out = map(_with_rows, (grad_out, query, key, value, out))
    part = seen(Attended(query, key, value, is_causal, attn_mask, scale, first))
    call, kernel = _suited(part.call)
    given = map(part.queries, (grad_out, out, logsumexp))
    d_query, d_key, d_value = _BACKWARD[kernel](call, *given)
    return part.all_queries(d_query), part.all_keys(d_key), part.all_keys(d_value)


def _suited(call: Attended) -> tuple[Attended, str]:
    """Returns an attention as a kernel takes it, and the kernel."""
    kernel = chosen(call)
    knows = kernel == FLASH_KERNEL or not call.causal or not call.first
    return call if knows else explicit(call), kernel


def chosen(call: Attended) -> str:
    """Returns the name of what computes an attention where its operands are."""
    query, key, value = call[:3]
    device = query.device.type
    if any(each.numel() == 0 for each in (query, key, value)):
        return BY_DEFINITION
    if device == CUDA:
        shapes = (tuple(each.shape) for each in (query, key, value))
        masked, first = call.mask is not None, call.first if call.causal else None
        return gpu_kernel(query.itemsize, *shapes, masked=masked, first=first)
    return CPU if device == CPU else BY_DEFINITION


def _check(dropout_p: float) -> None:
    if dropout_p:
        raise InvalidInputError(
            f"{ATTENTION} drops nothing, but dropout_p is {dropout_p}: kernels draw bits of their"
            " own, on which meshes wouldn't agree"
        )


def _on_cpu(call: Attended) -> tuple[Tensor, Tensor]:
    query, key, value, causal, mask, scale, _ = call
    found: tuple[Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    return found


def _on_cpu_backward(
    call: Attended, grad_out: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    query, key, value, causal, mask, scale, _ = call
    found: tuple[Tensor, ...] = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, sums, 0.0, causal, attn_mask=mask, scale=scale
    )
    return found


def _by_definition(call: Attended) -> tuple[Tensor, Tensor]:
    query, key, value, causal, mask, scale, _ = call
    return definition.attention(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)


def _by_definition_backward(
    call: Attended, grad_out: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    query, key, value, causal, mask, scale, _ = call
    return definition.attention_backward(
        grad_out, query, key, value, out, sums, 0.0, causal, attn_mask=mask, scale=scale
    )


def _flash(call: Attended) -> tuple[Tensor, Tensor]:
    query, key, value = map(_aligned, call[:3])
    out, sums, *_ = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, call.causal, scale=call.scale
    )
    return out[..., : call.value.shape[-1]], sums


def _flash_backward(
    call: Attended, grad_out: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    query, key, value, grad_out, out = map(_aligned, (*call[:3], grad_out, out))
    lengths = (None, None, query.shape[-2], key.shape[-2])
    seed, offset = _unused(query, 2), _unused(query)
    gradients = aten._scaled_dot_product_flash_attention_backward(
        *(grad_out, query, key, value, out, sums.contiguous(), *lengths),
        *(0.0, call.causal, seed, offset),
        scale=call.scale,
    )
    return _cut(gradients, call)


def _efficient(call: Attended) -> tuple[Tensor, Tensor]:
    query, key, value = _a_head_each(call)
    out, sums, *_ = aten._scaled_dot_product_efficient_attention(
        query, key, value, _bias(call), True, 0.0, call.causal, scale=call.scale
    )
    # What the kernel makes of a query that sees no key isn't specified.
    out, sums = out[..., : call.value.shape[-1]], sums[..., : query.shape[-2]].contiguous()
    blind = _blind(call)
    if blind is None:
        return out, sums
    return out.masked_fill_(blind, 0), sums.masked_fill_(blind[..., 0], 0)


def _efficient_backward(
    call: Attended, grad_out: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    query, key, value = _a_head_each(call)
    blind = _blind(call)
    if blind is not None:
        # Its weights are exp(score - infinity), which is 0.
        sums = sums.masked_fill(blind[..., 0], torch.inf)
    step = SUMS_STEP if torch.version.hip is None else 1
    sums = pad(sums, (0, -sums.shape[-1] % step), value=torch.inf).contiguous()
    # The kernel takes it for granted that the output lies as it left it.
    out = _aligned(out).transpose(1, 2).contiguous().transpose(1, 2)
    seed, offset = _unused(query), _unused(query)
    wanted = [True, True, True, False]
    *gradients, _ = aten._scaled_dot_product_efficient_attention_backward(
        *(_aligned(grad_out), query, key, value, _bias(call), out, sums, seed, offset),
        *(0.0, wanted, call.causal),
        scale=call.scale,
    )
    return _cut(gradients, call)


def _unused(query: Tensor, *shape: int) -> Tensor:
    """Returns what stands for random state where nothing is drawn."""
    return torch.zeros(shape, dtype=torch.int64, device=query.device)


def _with_rows(x: Tensor) -> Tensor:
    """Returns a tensor whose rows have their elements side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _aligned(x: Tensor) -> Tensor:
    """Returns heads padded to a multiple of 16 bytes, at addresses that are multiples."""
    step = ALIGNED_BYTES // x.itemsize
    if (extra := padded(x.shape[-1], x.itemsize) - x.shape[-1]) > 0:
        return pad(x, (0, extra))
    # A tensor begins where memory is aligned, but for views.
    if any(at % step for at in (*x.stride()[:-1], int(x.storage_offset()))):
        return x.clone(memory_format=torch.contiguous_format)
    return x


def _a_head_each(call: Attended) -> tuple[Tensor, Tensor, Tensor]:
    """Returns aligned operands, with a head of the keys and values for each of the queries."""
    heads, shared = call.query.shape[1], call.key.shape[1]
    key, value = (definition.for_each_query(each, heads // shared) for each in call[1:3])
    return _aligned(call.query), _aligned(key), _aligned(value)


def _bias(call: Attended) -> Tensor | None:
    """Returns the mask of all scores [batch, heads, length, keys], with aligned rows."""
    if call.mask is None:
        return None
    keys = call.key.shape[-2]
    mask = call.mask.to(call.query.dtype)
    mask = mask.expand(*mask.shape[:-1], keys)
    aligned = mask.stride(-1) == 1 and keys % MASK_STEP == 0
    if not aligned or any(at % MASK_STEP for at in (*mask.stride()[:-1], mask.storage_offset())):
        mask = pad(mask, (0, -keys % MASK_STEP)).contiguous()[..., :keys]
    return mask.expand(*call.query.shape[:-1], keys)


def _blind(call: Attended) -> Tensor | None:
    """Returns which queries see no key, [..., length or 1, 1] as the mask is."""
    if call.mask is None:
        return None
    visible = call.mask > -torch.inf
    if call.causal:
        length = call.query.shape[-2]
        visible = visible.expand(*visible.shape[:-2], length, call.key.shape[-2]).tril()
    blind = ~visible.any(-1, keepdim=True)
    return blind.expand(*(1,) * (4 - blind.ndim), *blind.shape)


def _cut(gradients: Any, call: Attended) -> tuple[Tensor, ...]:
    """Returns gradients of the operands, from those of what a kernel was given."""
    found = []
    for gradient, operand in zip(gradients, call[:3], strict=True):
        if gradient.shape[1] != operand.shape[1]:
            gradient = definition.by_head(gradient, operand.shape[1])
        found.append(gradient[..., : operand.shape[-1]])
    return tuple(found)


_Forward = Callable[[Attended], tuple[Tensor, Tensor]]
_Backward = Callable[[Attended, Tensor, Tensor, Tensor], tuple[Tensor, ...]]

_FORWARD: Mapping[str, _Forward] = {
    CPU: _on_cpu,
    FLASH_KERNEL: _flash,
    EFFICIENT_KERNEL: _efficient,
    BY_DEFINITION: _by_definition,
}
_BACKWARD: Mapping[str, _Backward] = {
    CPU: _on_cpu_backward,
    FLASH_KERNEL: _flash_backward,
    EFFICIENT_KERNEL: _efficient_backward,
    BY_DEFINITION: _by_definition_backward,
}

FUSED: Mapping[str, Callable[..., Any]] = {
    ATTENTION: attention,
    ATTENTION_BACKWARD: attention_backward,
}
"""The function behind each op kind."""
