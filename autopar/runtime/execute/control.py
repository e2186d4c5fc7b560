"""Calls and loops of a program, as modules that the generated code calls.

Tasks of a pipeline are functions that are called; without one, all that is done for a microbatch is
the body of a loop. What an iteration reads and what a loop returns is said here alone. The virtual
mesh, which stops at collectives within a body, walks that instead of `forward`.

A function gets its inputs in a box, a list that it empties: while it runs, its caller has no
reference to what nobody else reads.

They run `body.forward` and not `body`: when an op fails, fx's own call prints the line of generated
code and drops the traceback, from which the failing op is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn


def boxed(*operands: Any) -> list[Any]:
    """Returns a box that hands over tensors, and sizes."""
    return [*reversed(operands)]


def unboxed(box: list[Tensor]) -> Tensor:
    """Returns the next tensor of a box, which has it no more."""
    return box.pop()


class Call(nn.Module):
    """Runs a function.

    Args:
        body: The function.

    Attributes:
        run: What runs it.
    """

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body
        self.run: Callable[[list[Tensor]], tuple[Tensor, ...]] = body.forward

    def forward(self, box: list[Tensor]) -> tuple[Tensor, ...]:
        """Returns the function's outputs."""
        return self.run(box)


class Choice(nn.Module):
    """Runs one of two functions; see `autopar.runtime.tuned.choices`.

    Args:
        branches: The functions: where a condition holds, and where not.
        places: Which of the inputs each of them takes.
    """

    def __init__(self, branches: Sequence[fx.GraphModule], places: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self._branches = tuple(branches)
        self._places = places

    def forward(self, condition: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        """Returns the outputs of the function that a condition picks."""
        side = 0 if condition else 1
        given = [inputs[at] for at in self._places[side]]
        found: tuple[Tensor, ...] = self._branches[side].forward(*given)
        return found


class Loop(NamedTuple):
    """How a function is repeated.

    Attributes:
        trip: Number of iterations.
        carried: Number of values handed from one iteration to the next.
        sliced: Number of values of which iteration i reads entry i of dimension 0.
        first: The number of the first iteration; None where nothing depends on it.
    """

    trip: int
    carried: int
    sliced: int
    first: int | None = None


class Repeat(nn.Module):
    """Runs a function a fixed number of times.

    The body's inputs are (carried..., one slice of each sliced..., invariant..., and the number of
    the iteration where it depends on that), its outputs (carried..., one per iteration...).

    Args:
        body: The function.
        loop: How often it runs, and what it is given.

    Attributes:
        run: What runs the function.
    """

    def __init__(self, body: fx.GraphModule, loop: Loop) -> None:
        super().__init__()
        self.body = body
        self.loop = loop
        self.run: Callable[[list[Tensor]], tuple[Tensor, ...]] = body.forward

    def forward(self, box: list[Tensor]) -> tuple[Tensor, ...]:
        """Returns the final carried values and each per-iteration output, stacked."""
        iterations = Iterations(self.loop, box)
        for iteration in range(self.loop.trip):
            iterations.add(self.run(iterations.box(iteration)))
        return iterations.results()


class Iterations:
    """The values of a loop while it runs; what is carried is handed over.

    Args:
        loop: The loop.
        box: Has its operands, and loses them: carried, sliced, invariant.
    """

    def __init__(self, loop: Loop, box: list[Tensor]) -> None:
        operands, last = box[::-1], loop.carried + loop.sliced
        box.clear()
        self._count, self._first = loop.carried, loop.first
        self._carried: Sequence[Tensor] = operands[: loop.carried]
        self._sliced = operands[loop.carried : last]
        self._invariant = operands[last:]
        self._collected: list[tuple[Tensor, ...]] = []

    def box(self, iteration: int) -> list[Tensor]:
        """Returns the body's inputs of an iteration, the one after what was added last."""
        carried, self._carried = self._carried, ()
        number = () if self._first is None else (self._first + iteration,)
        slices = (each[iteration] for each in self._sliced)
        return boxed(*carried, *slices, *self._invariant, *number)

    def add(self, produced: tuple[Tensor, ...]) -> None:
        """Takes the body's outputs of an iteration."""
        self._carried = produced[: self._count]
        self._collected.append(produced[self._count :])

    def results(self) -> tuple[Tensor, ...]:
        """Returns the carried values after the loop, and what is stacked."""
        return (*self._carried, *map(torch.stack, zip(*self._collected, strict=True)))
