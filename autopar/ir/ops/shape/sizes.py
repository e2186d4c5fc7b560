"""Sizes and positions that a rule is made of, where they may be open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from autopar.ir.expr.expression import Expr, IntExpr, common_factor, shape_str
from autopar.ir.expr.facts import is_at_least, larger
from autopar.ir.rules.local_arg import Size
from autopar.ir.rules.rule import OpCall, RuleError


def integer(call: OpCall, name: str, default: int = 0) -> IntExpr:
    """Returns an integer argument, which may depend on open sizes; None is the default.

    Raises:
        RuleError: If the argument is something else.
    """
    arg = call.args.get(name)
    if isinstance(arg, Expr):
        return arg
    return default if arg is None else call.integer(name, default)


def integers(call: OpCall, name: str) -> tuple[IntExpr, ...]:
    """Returns an argument that is a list of integers, which may depend on open sizes.

    Raises:
        RuleError: If the argument is something else.
    """
    arg = call.args.get(name)
    if not isinstance(arg, tuple):
        return (integer(call, name),) if arg is not None else ()
    if not all(isinstance(item, (int, Expr)) for item in arg):
        raise RuleError(f"{call.kind}: argument {name} is {arg!r}, not a list of integers")
    return tuple(item for item in arg if isinstance(item, (int, Expr)))


def start_of(call: OpCall, size: IntExpr) -> IntExpr | None:
    """Returns where a slice of so many entries starts, by the argument `start`.

    Negative numbers count from the end, and stop at the front. None if it isn't known which of
    them an open one is.
    """
    start = integer(call, "start")
    if isinstance(start, int) and start < 0:
        return larger(0, size + start)
    return start if is_at_least(start, 0) else None


def index_of(call: OpCall, size: IntExpr) -> IntExpr | None:
    """Returns the argument `index`, counted from the front of so many entries; see `start_of`."""
    index = integer(call, "index")
    if isinstance(index, int):
        return size + index if index < 0 else index
    return index if is_at_least(index, 0) else None


def broadcast(shapes: Sequence[Sequence[IntExpr]]) -> tuple[IntExpr, ...]:
    """Returns the shape to which others broadcast.

    Raises:
        RuleError: If two sizes other than 1 meet that aren't known to be equal.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(*(1,) * (rank - len(shape)), *shape) for shape in shapes]
    return tuple(_met(sizes) for sizes in zip(*padded, strict=True))


def _met(sizes: Sequence[IntExpr]) -> IntExpr:
    others = [size for size in sizes if size != 1]
    if any(size != others[0] for size in others):
        raise RuleError(f"sizes {shape_str(others)} aren't known to be equal")
    return others[0] if others else 1


def common_block(sizes: Iterable[IntExpr]) -> IntExpr:
    """Returns the largest number, times open sizes, of which all are known to be multiples."""
    found: IntExpr = 0
    for size in sizes:
        found = common_factor(found, size)
    return 1 if found == 0 else found


def label(size: IntExpr) -> str:
    """Returns a size as a part of a factor's name: `4`, `n`, `n_1` for `$n + 1`."""
    return re.sub(r"\W+", "_", str(size).replace("$", ""))


def open_size(size: IntExpr) -> Size | int:
    """Returns a size as what an argument is on every shard."""
    return size if isinstance(size, int) else Size((), size)
