"""Relations between open sizes, as `$past + $length <= 512`, which hold in each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.base.errors import UNKNOWN, Loc
from autopar.ir.expr.expression import (
    AsPlanned,
    IntExpr,
    evaluate,
    floordiv,
    multiply,
    sizes_of,
    substitute,
)
from autopar.ir.expr.multiples import divisors

SIGNS = ("<=", "==")


@dataclass(frozen=True, slots=True)
class Relation:
    """What must hold of open sizes, beyond the ranges of each.

    That an expression is a multiple of 4 is `$n // 4 * 4 == $n`.

    Attributes:
        left: An expression of open sizes.
        sign: One of `SIGNS`.
        right: Another one.
        loc: The user's line, or the ONNX node, that needs it.
    """

    left: IntExpr
    sign: str
    right: IntExpr
    loc: Loc = UNKNOWN

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Returns whether it holds.

        Args:
            sizes: The open sizes by their names behind a `$`.
        """
        left, right = evaluate(self.left, sizes), evaluate(self.right, sizes)
        return left <= right if self.sign == "<=" else left == right

    @property
    def is_planned(self) -> bool:
        """Whether it holds of the sizes for which decisions are made."""
        return self.holds(AsPlanned())

    @property
    def names(self) -> frozenset[str]:
        """The names of the open sizes on which it depends."""
        return frozenset(size.name for side in (self.left, self.right) for size in sizes_of(side))

    def at(self, known: Mapping[str, IntExpr]) -> Relation:
        """Returns it with what is known in the place of open sizes; see `substitute`."""
        left, right = (substitute(side, known) for side in (self.left, self.right))
        return Relation(left, self.sign, right, self.loc)

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    @property
    def told(self) -> str:
        """What it says, for people: `past + length <= 512`, `n is a multiple of 4`."""
        divisor = self._divisor()
        text = str(self) if divisor is None else f"{self.right} is a multiple of {divisor}"
        return text.replace("$", "")

    def _divisor(self) -> int | None:
        if self.sign != "==":
            return None
        found = (each for each in divisors(self.left) if self._is_multiple_of(each))
        return next(found, None)

    def _is_multiple_of(self, number: int) -> bool:
        return self.left == multiply(floordiv(self.right, number), number)
