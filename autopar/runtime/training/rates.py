"""Learning rates of a compiled optimizer, as `torch.optim.lr_scheduler` expects an optimizer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.base.arguments import shown
from autopar.base.errors import InvalidInputError
from autopar.ir.program import Port, Program
from autopar.runtime.ports.rates import is_rate

_PLAIN = (bool, int, float, str, tuple, type(None))
_HOW = ("capturable", "differentiable", "foreach", "fused")
"""Options that say how an update is computed, not what it is."""

SCHEDULED = ("initial_lr", "max_lr", "min_lr", "swa_lr")
"""What schedulers of torch keep in a group besides its learning rate."""


class LearningRates(torch.optim.Optimizer):
    """The parameter groups of a compiled optimizer.

    A trainer reads `param_groups[i]["lr"]` at each step, so whatever sets it works: a scheduler of
    torch, or the user. The update itself is part of the compiled program, and its other options
    (`betas`, `weight_decay`) are there to be read.

    Args:
        program: A rank's program.
        stored: The rank's pieces of stored inputs by value name.
    """

    def __init__(self, program: Program, stored: Mapping[str, Tensor]) -> None:
        self._ports = [port for port in program.signature.inputs if is_rate(port)]
        labels = {port.name: port.label for port in program.signature.inputs}
        groups = [
            {
                **dict(port.options),
                "params": [stored[name] for name in names],
                "param_names": list(dict.fromkeys(labels[name] for name in names)),
                "lr": port.fill,
            }
            for port, names in zip(self._ports, _groups(program, self._ports), strict=True)
        ]
        super().__init__(groups, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group without what torch wraps this in, which imports torch's compiler first.

        That takes each rank seconds, and nothing here is compiled by it.
        """
        add = torch.optim.Optimizer.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)

    def rates(self, given: float | Sequence[float] | None = None) -> dict[str, float]:
        """Returns the learning rates by the label of their input.

        Args:
            given: Takes the place of those in `param_groups`: one for all groups, or one for each.

        Raises:
            InvalidInputError: If another number of them is given, or another option was changed.
        """
        count = len(self._ports)
        self._check_options()
        if given is None:
            rates = [group["lr"] for group in self.param_groups]
        elif isinstance(given, Sequence):
            rates = list(given)
        else:
            rates = [given] * count
        if isinstance(given, (str, bytes)):
            _number(given)
        if len(rates) != count:
            raise InvalidInputError(
                f"lr={given!r}: the program has {count} learning rates; give one number for all, or"
                " one for each"
            )
        return {port.label: _number(rate) for port, rate in zip(self._ports, rates, strict=True)}

    def groups(self) -> list[dict[str, Any]]:
        """Returns the groups, with the names of their parameters, and plain values only."""
        return [
            {
                **{name: value for name, value in group.items() if isinstance(value, _PLAIN)},
                "params": list(group["param_names"]),
            }
            for group in self.param_groups
        ]

    def check_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Refuses groups that aren't as many as the program has.

        Raises:
            InvalidInputError: If they aren't.
        """
        if len(groups) != len(self._ports):
            raise InvalidInputError(
                f"{len(groups)} groups of parameters are given, the program has {len(self._ports)}"
            )

    def put_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what groups say about the learning rates.

        Warns of other options that aren't those of the program, which go on to count.

        Raises:
            InvalidInputError: If there is another number of groups.
        """
        self.check_groups(groups)
        for group, given in zip(self.param_groups, groups, strict=True):
            group.update({name: given[name] for name in ("lr", *SCHEDULED) if name in given})
            for name in _differing(group, given):
                warnings.warn(
                    f"the state was made with {name}={given[name]!r}, the program was compiled with"
                    f" {group[name]!r}, and goes on with that",
                    stacklevel=3,
                )

    def _check_options(self) -> None:
        for group, port in zip(self.param_groups, self._ports, strict=True):
            if changed := _differing(dict(port.options), group):
                raise InvalidInputError(
                    f"{changed[0]} was changed to {group[changed[0]]!r}, but only the learning rate"
                    " can change from step to step; compile again with an optimizer that has it"
                )

    def state_dict(self) -> dict[str, Any]:
        """Refers to the trainer, which has the state of all ranks.

        Raises:
            InvalidInputError: Always.
        """
        raise InvalidInputError(
            "ranks hold pieces of the optimizer's state; call optimizer_state_dict() of the trainer"
        )

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Does nothing but tell schedulers that a step was done; the trainer calls it."""
        del closure

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: a step of the program computes its gradients anew."""
        del set_to_none


def _number(rate: Any) -> float:
    try:
        if isinstance(rate, (str, bytes)):
            raise TypeError
        found = float(rate)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInputError(
            f"lr={shown(rate)}: a learning rate is a number, as 0.001"
        ) from None
    if found < 0:
        raise InvalidInputError(f"lr={rate!r}: a learning rate is at least 0")
    if not math.isfinite(found):
        raise InvalidInputError(f"lr={rate!r}: of the parameters no number would be left")
    return found


def _differing(options: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Returns the names of options that are given otherwise."""
    known = options.keys() & given.keys()
    own = known - {"params", "param_names", "lr", *SCHEDULED, *_HOW}
    return sorted(name for name in own if _as_tuple(options[name]) != _as_tuple(given[name]))


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _groups(program: Program, rates: Sequence[Port]) -> list[list[str]]:
    """Returns the parameters that each learning rate reaches, by value name."""
    main = program.main
    parameters = {port.name for port in program.signature.inputs if port.role == "parameter"}
    reached: dict[str, frozenset[int]] = {
        port.name: frozenset((at,)) for at, port in enumerate(rates)
    }
    for op in main.ops:
        if found := frozenset().union(*(reached.get(name, ()) for name in op.operands)):
            reached.update(dict.fromkeys(op.results, found))
    return [
        [old for new, old in main.aliases if old in parameters and at in reached.get(new, ())]
        for at in range(len(rates))
    ]
