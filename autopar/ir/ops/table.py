"""What the tables of rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autopar.ir.expr.expression import IntExpr
from autopar.ir.rules.rule import (
    ALL_MONOIDS,
    Dims,
    Linear,
    OpCall,
    Rule,
    RuleError,
    build_rule,
    make_rule,
)

RuleFunction = Callable[[OpCall], Rule | None]
Table = Mapping[str, RuleFunction]


@dataclass(frozen=True, slots=True)
class Again:
    """The op that computes the first results of another one without renewing what that renews.

    Attributes:
        kind: Its kind.
        without: The arguments that it doesn't take.
        results: How many results it has.
    """

    kind: str
    without: tuple[str, ...]
    results: int


@dataclass(frozen=True, slots=True)
class Over:
    """That an op's result may be written over an operand, though it has no in-place form.

    Attributes:
        operand: The operand.
        variant: The overload that writes.
        taking: The argument of that which takes the operand once more.
    """

    operand: str
    variant: str
    taking: str


@dataclass(frozen=True, slots=True)
class Strict:
    """The row of an op whose kernel refuses operands that aren't dense, or reads them wrong.

    Attributes:
        rule: Its rule function.
        rows: Whether it is enough that the last dimension is.
    """

    rule: RuleFunction
    rows: bool = False

    def __call__(self, call: OpCall) -> Rule | None:
        """Returns the rule of a call."""
        return self.rule(call)


COMPARISON = 200
"""Operations of vector arithmetic in whose time values are compared and moved, one by one.

What comes next depends on the outcome, so a core waits: 4 to 5 ns for sort, searchsorted and isin
of torch on a CPU that reaches 50 Gflop/s.
"""

SERIES = 1000
"""Operations that a function takes which is a series or a recursion, summed element by element.

Measured as above: 25 ns for digamma, 50 for igamma, 140 for zeta.
"""

TAP = 10
"""Operations per pixel that an interpolation reads: its place, its weight, and their sum."""

IDEMPOTENT = frozenset(("max", "min", "any", "all"))
"""Monoids that leave a value unchanged when it is combined with itself."""


def pending(*operands: int, monoids: Collection[str] = ("sum",)) -> Linear:
    """Returns the row for operands that may be pending together."""
    return Linear(frozenset(operands), frozenset(monoids))


def chosen(*operands: int) -> tuple[Linear, ...]:
    """Returns how an op commutes each of whose results' elements is one operand's.

    The operands may be pending together; if the reduction doesn't mind equal elements, also alone.
    """
    alone = (pending(at, monoids=IDEMPOTENT) for at in operands)
    return (pending(*operands, monoids=ALL_MONOIDS), *alone)


FIRST = (pending(0),)
"""Linear in the first operand."""

MOVED = (pending(0, monoids=ALL_MONOIDS),)
"""The first operand's elements are moved, and nothing is computed."""

ZERO_FILLED = (pending(0, monoids=IDEMPOTENT | {"sum"}),)
"""The first operand's elements are moved, and zeros are put around them."""

BILINEAR = (pending(0), pending(1))
"""Linear in either of two operands, the other being complete."""


def row(text: str, **options: Any) -> RuleFunction:
    """Returns the rule function of an op whose rule is the same text for all shapes.

    The options are those of `make_rule`.
    """

    def rule(call: OpCall) -> Rule | None:
        return make_rule(text, call, **options)

    return rule


def dense(rule: RuleFunction) -> Strict:
    """Returns a row of an op whose kernel ignores strides on the CPU, and gets contiguous copies.

    Rows of other ops are their rule functions: kernels take operands as they lie.
    """
    return Strict(rule)


def dense_rows(rule: RuleFunction) -> Strict:
    """Returns a row of an op whose kernel ignores the stride of the last dimension on the CPU."""
    return Strict(rule, rows=True)


def same(kinds: Sequence[str], rule: RuleFunction) -> dict[str, RuleFunction]:
    """Returns the rows of several ops that share a rule function."""
    return dict.fromkeys(kinds, rule)


def whole(call: OpCall, linear: Sequence[Linear] = ()) -> Rule:
    """Returns the rule of an op that every process computes by itself."""
    tensors = [
        factors(f"w{at}_", len(tensor.shape))
        for at, tensor in enumerate((*call.operands, *call.results))
    ]
    names = [name for dims in tensors for (name,) in dims]
    count = len(call.operands)
    return build_rule(call, tensors[:count], tensors[count:], whole=names, linear=linear, work=0)


def operand_dims(call: OpCall, by_name: Mapping[str, Dims]) -> list[Dims]:
    """Returns the dimensions' factors per operand, from those of each argument that names one.

    Raises:
        RuleError: If an argument names tensors and isn't in `by_name`.
    """
    found: list[Dims] = []
    for name, positions in call.positions.items():
        if positions and name not in by_name:
            raise RuleError(f"{call.kind}: argument {name} isn't expected to be a tensor")
        found.extend(by_name[name] for _ in positions)
    return found


def factors(prefix: str, count: int, start: int = 0) -> Dims:
    """Returns dimensions of one factor each: `prefix0 prefix1 ...`."""
    return tuple((f"{prefix}{at}",) for at in range(start, start + count))


def axis(call: OpCall, rank: int, name: str = "dim", default: int = 0) -> int:
    """Returns an argument that names a dimension, counted from the front.

    Raises:
        RuleError: If there is no such dimension.
    """
    at = call.integer(name, default)
    if not -max(rank, 1) <= at < max(rank, 1):
        raise RuleError(f"{call.kind}: dimension {at} of a tensor with {rank}")
    return at % max(rank, 1)


def axes(call: OpCall, rank: int, name: str = "dim") -> frozenset[int]:
    """Returns an argument that names dimensions, counted from the front.

    A scalar's only dimension, 0 or -1 in torch, is none.

    Raises:
        RuleError: If a dimension doesn't exist.
    """
    given = call.integers(name)
    if any(not -max(rank, 1) <= at < max(rank, 1) for at in given):
        raise RuleError(f"{call.kind}: dimensions {list(given)} of a tensor with {rank}")
    return frozenset(at % rank for at in given) if rank else frozenset()


def along_index(shapes: Sequence[Sequence[IntExpr]], at: int) -> tuple[list[Dims], list[str]]:
    """Returns the factors of tensors that are indexed together but along dimension `at`.

    A dimension is split alike only where all have the same size: else an index reads or writes a
    leading part of it.

    Returns:
        The factors of each tensor, and those that must be whole.
    """
    whole: list[str] = []
    rank = len(shapes[0])
    tensors: list[list[tuple[str, ...]]] = [[] for _ in shapes]
    for dim in range(rank):
        alike = dim != at and len({shape[dim] for shape in shapes}) == 1
        for position, tensor in enumerate(tensors):
            name = f"i{dim}" if alike else f"s{position}_{dim}"
            tensor.append((name,))
            if not alike and dim != at:
                whole.append(name)
    return [tuple(tensor) for tensor in tensors], whole


def per_dim(call: OpCall, name: str, count: int, default: int) -> tuple[int, ...]:
    """Returns an argument with one integer per spatial dimension, or one for all of them.

    Raises:
        RuleError: If it has another number of entries.
    """
    given = call.integers(name) or (default,)
    if len(given) not in (1, count):
        raise RuleError(f"{call.kind}: argument {name} has {len(given)} entries, not {count}")
    return given * (count // len(given))


def copies(*names: str) -> list[str]:
    """Returns overloads of `aten`, and for `name.overload` those of `name_copy` too."""
    copies = [f"{name.partition('.')[0]}_copy.{name.partition('.')[2]}" for name in names]
    return [f"aten.{name}" for name in (*names, *copies)]
