"""The state of an optimizer before its first step: which tensors, and what they start at.

An optimizer of torch makes its state when it first sees a gradient. Here it does so for a tiny
stand-in of each parameter, whose state tells the initial value, and for a fake tensor of the
parameter's size, whose state tells the shapes. State that the user's optimizer has already, from
earlier steps, is taken as it is.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import SGD, Optimizer

from autopar.base.errors import InvalidInputError


@dataclass(frozen=True)
class StateTensor:
    """A tensor of an optimizer's state.

    Attributes:
        name: Such as `exp_avg`.
        parameter: Name of the parameter that it belongs to.
        fake: Its type.
        fill: The value of all its elements before the first step; None if `source` has them.
        source: The state of the user's optimizer, if it has any.
    """

    name: str
    parameter: str
    fake: Tensor
    fill: float | None
    source: Tensor | None = None

    @property
    def label(self) -> str:
        """Its name in the program."""
        return f"{self.name}/{self.parameter}"


def initial_state(
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    types: Mapping[str, torch.dtype],
    mode: FakeTensorMode,
) -> list[StateTensor]:
    """Returns the state of an optimizer, by parameter and in its own order.

    Args:
        optimizer: The user's optimizer. It isn't changed.
        parameters: The parameters that have gradients, by name.
        types: What they are stored as, by name.
        mode: The mode of fake tensors.

    Raises:
        InvalidInputError: If the optimizer's state can't be told before its first step.
    """
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found: list[StateTensor] = []
    fills: Fills = {}
    for name, parameter in parameters.items():
        if id(parameter) not in group_of:
            continue
        existing = optimizer.state.get(parameter)
        if existing:
            found.extend(_existing(existing, name, mode))
        else:
            with mode:
                fake = torch.empty(parameter.shape, dtype=types[name], device="cpu")
            found.extend(_fresh(optimizer, group_of[id(parameter)], name, fake, mode, fills))
    return found


def cloned(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> Optimizer:
    """Returns an optimizer of the same class and options over other parameter groups."""
    clone = copy.copy(optimizer)
    clone.__dict__ = dict(optimizer.__dict__)
    clone.param_groups = list(groups)
    clone.state = defaultdict(dict)
    return clone


def _existing(state: Mapping[str, Any], name: str, mode: FakeTensorMode) -> Iterator[StateTensor]:
    for key, tensor in state.items():
        if isinstance(tensor, Tensor):
            with mode:
                fake = torch.empty(tensor.shape, dtype=tensor.dtype)
            yield StateTensor(key, name, fake, None, tensor)


Fills = dict[tuple[int, int, torch.dtype], Mapping[str, float]]
"""What an optimizer fills its state with, by group and by parameters' dimensions and dtypes."""


def _fresh(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    name: str,
    fake: Tensor,
    mode: FakeTensorMode,
    fills: Fills,
) -> Iterator[StateTensor]:
    kind = id(group), fake.ndim, fake.dtype
    if kind not in fills:
        fills[kind] = dict(_filled(optimizer, group, name, fake))
    with mode:
        made = _made(optimizer, group, nn.Parameter(fake))
    for key, fill in fills[kind].items():
        yield StateTensor(key, name, made[key], fill)


def _filled(
    optimizer: Optimizer, group: Mapping[str, Any], name: str, fake: Tensor
) -> Iterator[tuple[str, float]]:
    """Returns what a new state of a parameter is filled with, as that of a tiny one shows."""
    tiny = torch.zeros([1] * max(fake.ndim, 1), dtype=fake.dtype)
    for key, tensor in _made(optimizer, group, nn.Parameter(tiny)).items():
        if tensor.is_complex():
            raise InvalidInputError(
                f"{name!r} is complex, and optimizers of programs have real state only; keep its"
                " real and imaginary parts as a parameter (torch.view_as_complex makes one of them)"
            )
        yield key, float(tensor.flatten()[0].item())


def _made(
    optimizer: Optimizer, group: Mapping[str, Any], parameter: nn.Parameter
) -> dict[str, Tensor]:
    """Returns the state that an optimizer makes for a parameter."""
    make = getattr(optimizer, "_init_group", None)
    if make is None:
        raise InvalidInputError(
            f"{type(optimizer).__name__} can't be compiled: it has no _init_group that makes its"
            " state, as most optimizers of torch.optim do; use one of those, as AdamW"
        )
    parameter.grad = torch.zeros_like(parameter)
    alone = dict(group, params=[parameter])
    clone = cloned(optimizer, [alone])
    lists = len(inspect.signature(make).parameters) - 1
    type(optimizer)._init_group(clone, alone, *([] for _ in range(lists)))  # type: ignore[attr-defined]
    state = {k: t for k, t in clone.state[parameter].items() if isinstance(t, Tensor)}
    if isinstance(optimizer, SGD) and group["momentum"] != 0:
        state["momentum_buffer"] = _momentum(group, parameter)
    return state


def _momentum(group: Mapping[str, Any], parameter: nn.Parameter) -> Tensor:
    if group["dampening"] != 0:
        raise InvalidInputError(
            f"SGD with dampening={group['dampening']} can't be compiled: torch leaves it out of the"
            " first step, so that step would be another program; use dampening=0"
        )
    # torch starts with the first gradient, which is what zero times momentum plus it is.
    return torch.zeros_like(parameter)
