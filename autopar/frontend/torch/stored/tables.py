"""Buffers that `forward` makes tables of, as a table of positions that grows with the batch.

Such a buffer is another tensor after a call, of another shape or dtype, and a program has no update
of that kind. But it needs none where the table is computed from nothing that changes and isn't in
the state dict: each call after the first finds the table, and so does each run of a trace but the
first. A run that makes another one is refused. The model keeps the buffer that it had.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from autopar.frontend.torch.conditions.cones import plain
from autopar.frontend.torch.stored.assigned import Buffers, registered_buffers

Fixed = Callable[[Tensor], Tensor | None]
"""Tells the value of a tensor that neither batch, weights nor draws change; None of others."""


class Tables:
    """The tables that `forward` made of buffers which aren't persistent.

    Args:
        model: The module.
        fixed: Tells values.
    """

    def __init__(self, model: nn.Module, fixed: Fixed) -> None:
        self.model = model
        self.fixed = fixed
        self.made: dict[str, Tensor] | None = None

    def lay_out(self) -> None:
        """Gives buffers the tables that the run before made of them."""
        for name, table in (self.made or {}).items():
            owner, own = self._owner(name)
            owner._buffers[own] = table

    def put_back(self, before: Buffers) -> None:
        """Takes tables away and puts back what was there before a run.

        What isn't the table that the run before made stays, and is no table.

        Args:
            before: The buffers before the run.
        """
        found = {
            name: table
            for name, new in registered_buffers(self.model).items()
            if name in before and new is not None and _is_another(before[name], new)
            if not self._is_persistent(name) and (table := self.fixed(new)) is not None
        }
        for name, table in found.items():
            if self.made is None or (name in self.made and is_same(self.made[name], table)):
                owner, own = self._owner(name)
                owner._buffers[own] = before[name]
        self.made = found if self.made is None else self.made

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        owner, _, own = name.rpartition(".")
        return self.model.get_submodule(owner), own

    def _is_persistent(self, name: str) -> bool:
        owner, own = self._owner(name)
        return own not in owner._non_persistent_buffers_set


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    with plain():
        return torch.equal(*map(_bits, (one, other)))


def _bits(tensor: Tensor) -> Tensor:
    flat = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _is_another(old: Tensor | None, new: Tensor) -> bool:
    return old is None or (old.shape, old.dtype) != (new.shape, new.dtype)
