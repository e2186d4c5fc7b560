"""Calls and loops of a program, as modules that the generated code calls.

They run `body.forward` and not `body`: when an op fails, fx's own call prints the line of generated
code and drops the traceback, from which the failing op is read.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn


class Call(nn.Module):
    """Runs a function.

    Args:
        body: The function.
    """

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    def forward(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """Returns the function's outputs."""
        return self.body.forward(*operands)  # type: ignore[no-any-return]


class Repeat(nn.Module):
    """Runs a function a fixed number of times.

    The body's inputs are (carried..., one slice of each sliced..., invariant...), its outputs
    (carried..., one per iteration...).

    Args:
        body: The function.
        trip: Number of iterations.
        carried: Number of values handed from one iteration to the next.
        sliced: Number of values of which iteration i reads entry i of dimension 0.
    """

    def __init__(self, body: fx.GraphModule, trip: int, carried: int, sliced: int) -> None:
        super().__init__()
        self.body = body
        self.trip = trip
        self.carried = carried
        self.sliced = sliced

    def arguments(
        self, iteration: int, state: tuple[Tensor, ...], operands: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Returns the body's inputs of an iteration, given the carried values before it."""
        last = self.carried + self.sliced
        slices = [operand[iteration] for operand in operands[self.carried : last]]
        return (*state, *slices, *operands[last:])

    def results(
        self, state: tuple[Tensor, ...], collected: list[tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Returns the loop's results: the carried values after it, and what is stacked."""
        return (*state, *(torch.stack(entries) for entries in zip(*collected, strict=True)))

    def forward(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """Returns the final carried values and each per-iteration output, stacked."""
        state = operands[: self.carried]
        collected: list[tuple[Tensor, ...]] = []
        for iteration in range(self.trip):
            produced = self.body.forward(*self.arguments(iteration, state, operands))
            state = produced[: self.carried]
            collected.append(produced[self.carried :])
        return self.results(state, collected)
