"""How a tensor is made of what a model stores, and of nothing else: so it can be made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from autopar.frontend.torch.conditions.cones import Made


@dataclass(frozen=True)
class _Operand:
    """A tensor that a step reads: what an earlier one made, or what is stored under a name."""

    of: int | str


@dataclass(frozen=True)
class _Step:
    """An op; `arguments` are its positional and named ones, with operands for tensors."""

    func: Any
    arguments: Any
    at: int | None


@dataclass(frozen=True)
class Formula:
    """How a tensor is made of stored ones.

    Attributes:
        steps: The ops, the one that makes it last.
        stored: Names of the stored tensors.
    """

    steps: tuple[_Step, ...]
    stored: frozenset[str]

    def compute(self, stored: Callable[[str], Tensor]) -> Tensor:
        """Returns what it is now.

        Args:
            stored: Returns a stored tensor by its name.
        """
        done: list[Tensor] = []

        def operand(each: _Operand) -> Tensor:
            return stored(each.of) if isinstance(each.of, str) else done[each.of]

        for step in self.steps:
            args, kwargs = pytree.tree_map_only(_Operand, operand, step.arguments)
            result = step.func(*args, **kwargs)
            done.append(result if step.at is None else result[step.at])
        return done[-1]


def formula_of(
    tensor: Tensor, names: Mapping[int, str], made: Callable[[Tensor], Made | None]
) -> Formula | None:
    """Returns how a tensor is made; None if it is of anything else, or random.

    Args:
        tensor: A fake tensor.
        names: Of what may be read, by identity.
        made: Tells how a fake tensor was made.
    """
    places: dict[int, int] = {}
    steps: list[_Step] = []
    stored: set[str] = set()

    def operand(each: Tensor) -> object:
        if id(each) in names:
            stored.add(names[id(each)])
            return _Operand(names[id(each)])
        return _Operand(places[id(each)]) if isinstance(each, FakeTensor) else each

    waiting = [(tensor, False)]
    while waiting:
        each, ready = waiting.pop()
        if id(each) in names or id(each) in places:
            continue
        how = made(each)
        if how is None or how.draws:
            return None
        if ready:
            arguments = pytree.tree_map_only(Tensor, operand, (how.args, how.kwargs))
            places[id(each)] = len(steps)
            steps.append(_Step(how.func, arguments, how.at))
        else:
            waiting.append((each, True))
            waiting.extend((operand, False) for operand in reversed(how.operands))
    return Formula(tuple(steps), frozenset(stored)) if steps and stored else None


def same_formula(one: Formula, other: Formula) -> bool:
    """Whether two formulas are the same ops of the same tensors."""
    if len(one.steps) != len(other.steps):
        return False
    return all(map(_same_step, one.steps, other.steps))


def _same_step(one: _Step, other: _Step) -> bool:
    mine, spec = pytree.tree_flatten(one.arguments)
    theirs, like = pytree.tree_flatten(other.arguments)
    if (one.func, one.at, spec) != (other.func, other.at, like):
        return False
    return all(map(_same, mine, theirs))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    return type(one) is type(other) and bool(one == other)
