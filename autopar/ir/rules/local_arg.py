"""Arguments that depend on the shard: what a rule says they become where an op is split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.ir.expr.expression import IntExpr
from autopar.ir.rules.text import Dims


@dataclass(frozen=True, slots=True)
class Sizes:
    """A list argument that becomes, per entry, a product of local factor sizes.

    An entry that is an integer is kept, one that is a rule for an argument is followed. Used for
    the sizes of views, expands and creation ops.
    """

    entries: tuple[tuple[str, ...] | int | LocalArg, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A scalar argument that becomes the product of local factor sizes, times `scale`."""

    factors: tuple[str, ...]
    scale: IntExpr = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """A scalar argument that becomes `base + scale * (first index of the factor's local block)`.

    With `end`, the index just behind the block. `arange` uses both. With `minus`, the first index
    of that factor's local block is subtracted, as the diagonal of a triangular matrix needs it.
    It isn't less than `least`, and counts in units of the local sizes of some factors.
    """

    factor: str
    base: IntExpr = 0
    scale: IntExpr = 1
    end: bool = False
    minus: str = ""
    least: int | None = None
    unit: tuple[str, ...] = ()

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors on whose blocks it depends."""
        return (self.factor, self.minus) if self.minus else (self.factor,)


@dataclass(frozen=True, slots=True)
class Grid:
    """A list argument that becomes the elements that a shard holds of a tensor with these dims.

    Per sub-dimension, major to minor: the first index, how many, and the distance of neighbours in
    the row-major order of the whole tensor. Random ops count elements by it.

    Attributes:
        dims: The factors of each dimension.
        base: Per factor, in their order, the first index and the distance of neighbours of the op
            itself, where that has a part of the whole tensor already; empty where it has all.
    """

    dims: Dims
    base: tuple[tuple[IntExpr, IntExpr], ...] = ()


@dataclass(frozen=True, slots=True)
class IfSplit:
    """An argument that is `then` where a factor is split, and `otherwise` where it isn't.

    An operand that is read through a window comes with all that its window covers, so the padding
    of such a dimension is 0.
    """

    factor: str
    then: int | LocalArg
    otherwise: int | LocalArg


LocalArg = Sizes | Size | Offset | Grid | IfSplit


def parts_of(arg: int | LocalArg | tuple[str, ...]) -> Iterator[LocalArg]:
    """Yields the rules that an argument's rule consists of."""
    if isinstance(arg, Sizes):
        yield from (part for entry in arg.entries for part in parts_of(entry))
    elif isinstance(arg, IfSplit):
        yield from (*parts_of(arg.then), *parts_of(arg.otherwise))
    elif not isinstance(arg, (int, tuple)):
        yield arg
