"""Refuses models of which only some calls write to what lasts, as one that its first call sets up.

A program does in each step what later calls do. Tracing runs `forward` several times, so what one
run writes to and another one doesn't shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.conditions.cones import behind


class WrittenOnce:
    """Compares what the runs of `forward` write to: parameters, buffers and the batch.

    Args:
        model: The module.
        is_written: Tells whether an op wrote to the memory of a fake tensor.
    """

    def __init__(self, model: nn.Module, is_written: Callable[[Tensor], bool]) -> None:
        self.model = model
        self.is_written = is_written
        self.first: frozenset[str] | None = None

    def begin(self, batch: Sequence[Tensor]) -> None:
        """Says that a run begins."""
        named = {
            **{f"{name!r}": each for name, each in self.model.named_parameters()},
            **{f"{name!r}": each for name, each in self.model.named_buffers()},
            **{f"tensor {at} of the batch": each for at, each in enumerate(batch)},
        }
        self.before = [(name, each, *self._state(each)) for name, each in named.items()]

    def end(self) -> None:
        """Says that a run ended.

        Raises:
            InvalidInputError: If it didn't write to what the first one wrote to, or to more.
        """
        now = frozenset(
            name
            for name, tensor, fake, written in self.before
            if behind(tensor) is not fake or self.is_written(fake) != written
        )
        self.first = now if self.first is None else self.first
        for name in sorted(now ^ self.first):
            raise InvalidInputError(
                f"forward writes to {name} in some calls and not in others, as its first call"
                " does that sets the model up; call the model once before it is compiled"
            )

    def _state(self, tensor: Tensor) -> tuple[Tensor, bool]:
        fake = behind(tensor)
        return fake, self.is_written(fake)
