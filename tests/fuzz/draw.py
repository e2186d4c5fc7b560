"""Draws the operands and arguments of random calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.fuzz.programs import Writer


@dataclass(frozen=True)
class Step:
    """A call.

    Attributes:
        function: Takes the operands.
        operands: Their positions.
        exact: Whether rounding can't depend on how the call is split.
    """

    function: Callable[..., Any]
    operands: tuple[int, ...]
    exact: bool = True


class Draw:
    """Draws operands and arguments for a call.

    Raises `ValueError` where no value fits, and so ends the attempt.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.dice: random.Random = writer.dice

    def __getitem__(self, at: int) -> Tensor:
        return self.writer.tensors[at]

    def chance(self, probability: float = 0.5) -> bool:
        return self.dice.random() < probability

    def any(self, kind: str = "", rank: int = 0, exact: bool = False) -> int:
        """Returns a value of a kind and a least rank; late ones are likelier."""
        fits = [
            at
            for at, it in enumerate(self.writer.tensors)
            if it.ndim >= rank
            and (not kind or kind_of(it) in kind.split("|"))
            and (not exact or self.writer.exact[at])
        ]
        if not fits or self.chance(0.12):
            rank = self.dice.randint(max(rank, 1), 4)
            picked = self.dice.choice(kind.split("|")) if kind else "float"
            return self.source(*self.writer.shape(rank), kind=picked)
        return max(self.dice.choice(fits), self.dice.choice(fits))

    def source(self, *shape: int, kind: str = "float", bound: int = 4) -> int:
        return self.writer.source(shape, kind, bound)

    def dim(self, at: int) -> int:
        rank = self[at].ndim
        if not rank:
            raise ValueError("no dimension")
        return self.dice.randrange(-rank, rank)

    def dims(self, at: int) -> list[int]:
        rank = self[at].ndim
        return self.dice.sample(range(rank), self.dice.randint(1, rank)) if rank else []

    def partner(self, at: int, kind: str = "float", exact: bool = False) -> int:
        """Returns a value that broadcasts with another one."""
        shape = self[at].shape
        fits = [
            other
            for other, it in enumerate(self.writer.tensors)
            if kind_of(it) == kind
            and (not exact or self.writer.exact[other])
            and broadcasts(it.shape, shape)
        ]
        if fits and self.chance(0.7):
            return self.dice.choice(fits)
        wanted = [size if self.chance(0.8) else 1 for size in shape]
        return self.source(*wanted[self.dice.randint(0, len(wanted)) :], kind=kind)


def kind_of(tensor: Tensor) -> str:
    """Returns `float`, `int` or `bool`."""
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def broadcasts(a: torch.Size, b: torch.Size) -> bool:
    """Returns whether two shapes broadcast with each other."""
    try:
        torch.broadcast_shapes(a, b)
    except RuntimeError:
        return False
    return True
