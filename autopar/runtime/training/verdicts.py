"""What devices found of steps that they judge by themselves, read when nobody has to wait for it.

A step on an accelerator changes nothing if its loss isn't finite (see `execute.held`), and the host
goes on. It copies the loss to its own memory beside what is computed, and looks at it two steps
later, when the copy has long arrived: all ranks behind the same step, so they go on alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.assumptions import Assumption, Scalar
from autopar.ir.program import ASSUMPTION, Program

LAG = 2
"""How many steps later one is looked at: the device is busy with the one between."""


class NonFiniteLoss(RuntimeFailure):
    """A step's loss is NaN or infinite. The step did not change the state.

    Attributes:
        step: The number of the step, from 0.
        loss: What the loss is.
    """

    def __init__(self, step: int, loss: float, empty: str = "", *, later: bool = False) -> None:
        """Says why, and what to do.

        Args:
            step, loss: See the attributes.
            empty: Which tensors of the batch have no elements; "" if all have some.
            later: Whether other steps came behind it.
        """
        self.step = step
        self.loss = loss
        left = "parameters and optimizer state are still those from before the step"
        if later:
            left = "parameters and optimizer state are as if there had been no such step"
        if empty:
            super().__init__(
                f"the batch of step {step} is empty ({empty}), so its loss is {loss}; {left}: leave"
                " such batches out"
            )
            return
        super().__init__(
            f"the loss of step {step} is {loss}; {left}, so the batch can be skipped or the"
            " learning rate lowered"
        )


class _Verdict(NamedTuple):
    """What is going to be known of a step.

    Attributes:
        number: The step's.
        read: Returns its loss, and the scalars that it assumes.
        assumptions: What these must be.
        empty: Which tensors of its batch have no elements.
    """

    number: int
    read: Callable[[], Sequence[Scalar]]
    assumptions: Sequence[Assumption]
    empty: str


class Verdicts:
    """The steps that nobody looked at yet.

    Args:
        finite: Whether losses must be finite.
    """

    def __init__(self, finite: bool) -> None:
        self._finite = finite
        self._waiting: deque[_Verdict] = deque()

    def add(self, number: int, program: Program, outputs: Sequence[Tensor], empty: str) -> None:
        """Starts to read of a step what decided about it.

        Args:
            number: The step's.
            program: What ran.
            outputs: What it computed.
            empty: Which tensors of its batch have no elements.
        """
        ports = program.signature.outputs
        at = [at for at, port in enumerate(ports) if port.role == ASSUMPTION]
        if self._finite or at:
            assumptions = [Assumption.from_port(ports[each]) for each in at]
            read = _arriving([outputs[each] for each in (0, *at)])
            self._waiting.append(_Verdict(number, read, assumptions, empty))

    def forget(self) -> None:
        """Looks at none of them any more: what they left was replaced."""
        self._waiting.clear()

    def look(self, lag: int = 0) -> None:
        """Looks at steps that have been done for a while.

        Args:
            lag: At how many of the last ones not yet; by default all are looked at.

        Raises:
            InvalidInputError: If an assumption didn't hold in one.
            NonFiniteLoss: If the loss of one isn't finite.
        """
        while len(self._waiting) > lag:
            number, read, assumptions, empty = self._waiting.popleft()
            loss, *scalars = read()
            for each, scalar in zip(assumptions, scalars, strict=True):
                if not each.holds(scalar):
                    raise InvalidInputError(
                        f"step {number} changed nothing: {each.refusal(scalar)}"
                    )
            if self._finite and not math.isfinite(loss):
                raise NonFiniteLoss(number, loss, empty, later=True)


def _arriving(values: Sequence[Tensor]) -> Callable[[], list[Scalar]]:
    """Starts to copy scalars to the host; returns what waits for them."""
    device = values[0].device
    if device.type == "cpu":
        copies = [each.clone() for each in values]
        return lambda: _numbers(copies)
    pinned = [torch.empty_like(each, device="cpu", pin_memory=True) for each in values]
    for here, there in zip(pinned, values, strict=True):
        here.copy_(there, non_blocking=True)
    arrived = torch.get_device_module(device).current_stream(device).record_event()
    return lambda: (arrived.synchronize(), _numbers(pinned))[1]


def _numbers(scalars: Sequence[Tensor]) -> list[Scalar]:
    found: list[Scalar] = []
    for each in scalars:
        found += each.reshape(1).tolist()
    return found
