"""A call of a module as autograd sees it: one function, whose backward is compiled too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autopar.base.errors import InvalidInputError
from autopar.parallel.sized import SizedVariant
from autopar.parallel.undoing import Undoing


class Call(torch.autograd.Function):
    """A call of a variant, as autograd sees it.

    `apply` takes the variant, the buffers, the seed, what cuts parameters and makes gradients of
    them, and then the parameters and the tensors of the call.
    """

    @staticmethod
    def forward(ctx: Any, call: VariantCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `SizedVariant.forward`."""
        variant = call.variant
        names = variant.wiring.parameters
        stored = dict(zip(names, map(call.local, tensors[: len(names)]), strict=True))
        written = variant.wiring.updated if variant.variant.refuses_late else ()
        stored = {**call.buffers, **stored}
        ctx.undoing = Undoing(stored[name] for name in written)
        outputs, saved = variant.forward(stored, tensors[len(names) :], call.seed, parts=call.parts)
        ctx.undoing.written()
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.call = call
        differentiable = variant.wiring.tangents
        ctx.mark_non_differentiable(
            *(each for at, each in enumerate(outputs) if at not in differentiable)
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """See `SizedVariant.backward`."""
        call: VariantCall = ctx.call
        names = call.variant.wiring.parameters
        try:
            found = call.variant.backward(ctx.saved_tensors, gradients)
        except InvalidInputError:
            ctx.undoing.undo()
            call.forget()
            raise
        batch = found[len(names) :]
        if call.parts:
            batch = call.variant.parts_of(batch)
        wrapped = [
            None if each is None else call.wrapped(name, each)
            for name, each in zip(names, found, strict=False)
        ]
        return None, *wrapped, *batch


@dataclass(frozen=True)
class VariantCall:
    """What a call needs besides tensors with gradients.

    Attributes:
        variant: The variant, at the sizes of the call.
        buffers: The rank's pieces of buffers, by name.
        seed: What random numbers depend on.
        parts: Whether the tensors of the call are the rank's pieces.
        local: Returns the rank's piece of a parameter.
        wrapped: Returns a piece of a gradient, by the parameter's name, as what the parameter is.
        forget: Takes back that the call has drawn random numbers.
    """

    variant: SizedVariant
    buffers: Mapping[str, Tensor]
    seed: int
    parts: bool
    local: Callable[[Tensor], Tensor]
    wrapped: Callable[[str, Tensor], Tensor]
    forget: Callable[[], None]
