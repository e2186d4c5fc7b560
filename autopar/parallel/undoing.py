"""Takes back what a call of a module wrote where only its backward pass refuses it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Undoing:
    """The contents that buffers had before a call.

    What was written again since, by another call or by the user, stays: it is no more this call's.

    Args:
        buffers: The buffers, which the call is about to write.
    """

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        self._before = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._written: list[int] = []

    def written(self) -> None:
        """Notes that the call has written them."""
        self._written = [buffer._version for buffer, _ in self._before]

    @torch.no_grad()
    def undo(self) -> None:
        """Gives the buffers the contents that they had."""
        for (buffer, before), version in zip(self._before, self._written, strict=True):
            if buffer._version == version:
                buffer.copy_(before)
