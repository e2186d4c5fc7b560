"""Ops of torch for the borders of a loop over microbatches (`autopar.ir.ops.loops`).

They stand in the graph of a step. Nothing runs them: programs are unrolled first.
"""

from __future__ import annotations

import torch
from torch import Tensor

torch.library.define(
    "autopar::loop_take", "(Tensor self, int trip, int dim=0, str loop='microbatch') -> Tensor"
)
torch.library.define("autopar::loop_parts", "(Tensor self, int trip) -> Tensor")
torch.library.define("autopar::loop_reduce", "(Tensor self, str monoid) -> Tensor")
torch.library.define("autopar::loop_cat", "(Tensor self, int trip, int dim=0) -> Tensor")
torch.library.define("autopar::loop_stack", "(Tensor self, int trip) -> Tensor")
torch.library.define("autopar::loop_carry", "(Tensor self, str loop='microbatch') -> Tensor")
torch.library.define("autopar::loop_last", "(Tensor self, Tensor carried) -> Tensor")


def _take(self: Tensor, trip: int, dim: int = 0, loop: str = "") -> Tensor:
    return self.new_empty((*self.shape[:dim], self.shape[dim] // trip, *self.shape[dim + 1 :]))


def _parts(self: Tensor, trip: int) -> Tensor:
    return self.new_empty((trip, self.shape[0] // trip, *self.shape[1:]))


def _reduce(self: Tensor, monoid: str) -> Tensor:
    return torch.empty_like(self)


def _like(self: Tensor, *rest: Tensor) -> Tensor:
    return torch.empty_like(self)


def _carry(self: Tensor, loop: str = "") -> Tensor:
    return torch.empty_like(self)


def _cat(self: Tensor, trip: int, dim: int = 0) -> Tensor:
    return self.new_empty((*self.shape[:dim], self.shape[dim] * trip, *self.shape[dim + 1 :]))


def _stack(self: Tensor, trip: int) -> Tensor:
    return self.new_empty((trip, *self.shape))


torch.library.register_fake("autopar::loop_take", _take)
torch.library.register_fake("autopar::loop_parts", _parts)
torch.library.register_fake("autopar::loop_reduce", _reduce)
torch.library.register_fake("autopar::loop_cat", _cat)
torch.library.register_fake("autopar::loop_stack", _stack)
torch.library.register_fake("autopar::loop_carry", _carry)
torch.library.register_fake("autopar::loop_last", _like)

take = torch.ops.autopar.loop_take.default
parts = torch.ops.autopar.loop_parts.default
reduce = torch.ops.autopar.loop_reduce.default
cat = torch.ops.autopar.loop_cat.default
stack = torch.ops.autopar.loop_stack.default
carry = torch.ops.autopar.loop_carry.default
last = torch.ops.autopar.loop_last.default
