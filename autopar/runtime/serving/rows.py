"""Proves that a row of the outputs depends on its row of the inputs alone.

So calls can be put together. The factor rules tell: along a factor that is in all results of an op,
and that nothing is added up or looked up along, each part of the op is computed of the same parts
of its operands. From op to op the rows are followed, however views and transpositions arrange them.
What is neither an input nor made of one, as a weight or a table of positions, has no rows and goes
into all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autopar.base.errors import InvalidInputError
from autopar.ir.expr.expression import IntExpr, Size, exact_quotient, prod, sizes_of
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, Program
from autopar.ir.rules.local_arg import Grid, LocalArg, Offset, parts_of
from autopar.ir.rules.rule import Dims, Rule
from autopar.ir.used_sizes import exprs_in
from autopar.runtime.ports.ports import plain_outputs, user_inputs


class Rows(NamedTuple):
    """Where the rows of a value are.

    Attributes:
        dim: The dimension.
        inner: How many elements of that dimension a row has side by side; with the number of rows,
            they may be repeated.
    """

    dim: int
    inner: IntExpr = 1


class _Within(NamedTuple):
    """Where rows are along a factor of a rule; see `Rows`."""

    factor: str
    inner: IntExpr


class _MixedError(Exception):
    """Why an op mixes rows."""


def check_rows(program: Program, size: Size) -> None:
    """Makes sure that rows don't depend on one another.

    Args:
        program: A serial program.
        size: The number of rows, which all inputs and outputs begin with.

    Raises:
        InvalidInputError: If they do, or it can't be told. Names the op.
    """
    main = program.main
    if main.aliases:
        into = main.aliases[0][1]
        raise _refusal(f"each call writes %{into}, which the next one reads")
    walk = _Walk(program, size)
    for op in main.ops:
        try:
            walk.follow(op)
        except _MixedError as error:
            raise _refusal(
                f"{op.loc}: %{op.results[0]}, by {op.kind}, mixes the rows of {size.name} or can't"
                f" be shown not to: {error}"
            ) from None
    for at in plain_outputs(program):
        name = main.outputs[at]
        if walk.rows.get(name) != Rows(0):
            raise _refusal(f"output %{name} doesn't have its rows along its first dimension")


def _refusal(why: str) -> InvalidInputError:
    return InvalidInputError(
        f"max_batch: calls can't be run together where a row depends on others; {why}. Leave"
        " max_batch out"
    )


class _Walk:
    """Follows rows through a program.

    Attributes:
        rows: Where they are in each value so far that has them.
    """

    def __init__(self, program: Program, size: Size) -> None:
        self._values = program.main.values
        self._size = size
        self.rows = {port.name: Rows(0) for port in user_inputs(program)}

    def follow(self, op: Op) -> None:
        """Finds the rows of what an op produces.

        Raises:
            _MixedError: If they depend on one another.
        """
        if not self._knows_of_rows(op):
            return
        rule = rule_of(op, self._values)
        if rule is None:
            raise _MixedError("it has no rule")
        # Not by its bodies' rules: along a factor of theirs, ops within may reduce.
        self.rows.update(zip(op.results, self._results(op, rule), strict=True))

    def _knows_of_rows(self, op: Op) -> bool:
        return (
            any(name in self.rows for name in op.operands)
            or any(self._is_of(size) for name in op.results for size in self._values[name].shape)
            or any(self._is_of(expr) for _, arg in op.args for expr in exprs_in(arg))
        )

    def _is_of(self, expr: IntExpr) -> bool:
        """Whether an expression depends on the number of rows."""
        return self._size.name in {size.name for size in sizes_of(expr)}

    def _results(self, op: Op, rule: Rule) -> list[Rows]:
        """Returns where rows are in the results of an op that a rule describes."""
        within = self._within(op, rule)
        for name, dims in zip(op.operands, rule.operands, strict=True):
            rows = self.rows.get(name)
            if (None if rows is None else self._along(rows, dims, rule)) != _found(within, dims):
                raise _MixedError(f"it takes other rows of %{name}, or more than one")
        self._check(op, rule, within.factor)
        return [self._placed(within, dims, rule) for dims in rule.results]

    def _within(self, op: Op, rule: Rule) -> _Within:
        """Returns where rows are: as in an operand, or by a size, where all are alike."""
        for name, dims in zip(op.operands, rule.operands, strict=True):
            if name in self.rows:
                return self._along(self.rows[name], dims, rule)
        factors = [name for name, size in rule.sizes.items() if self._is_of(size)]
        inner = exact_quotient(rule.sizes[factors[0]], self._size) if len(factors) == 1 else None
        if inner is None:
            raise _MixedError(f"it depends on how many of {self._size.name} there are")
        return _Within(factors[0], inner)

    def _along(self, rows: Rows, dims: Dims, rule: Rule) -> _Within:
        """Returns where rows of a value are, by the factors of its dimensions."""
        factors = dims[rows.dim]
        for at in reversed(range(len(factors))):
            inner = exact_quotient(rows.inner, _product(factors[at + 1 :], rule))
            if inner is None:
                continue
            if exact_quotient(rule.sizes[factors[at]], self._size * inner) is not None:
                return _Within(factors[at], inner)
        raise _MixedError("it doesn't keep rows together")

    def _check(self, op: Op, rule: Rule, factor: str) -> None:
        """Makes sure that an op computes each part along a factor by itself."""
        if factor in rule.whole or _is_window(rule, factor):
            raise _MixedError("it takes them together")
        if factor in rule.indexed:
            raise _MixedError("it takes those that an index names")
        if factor in rule.numbered or any(_numbers(arg, factor) for arg in rule.local.values()):
            raise _MixedError("it depends on their numbers")
        if any(
            self._is_of(e) for name, arg in op.args if name not in rule.local for e in exprs_in(arg)
        ):
            raise _MixedError("it depends on how many there are")

    def _placed(self, within: _Within, dims: Dims, rule: Rule) -> Rows:
        """Returns where rows are in a result."""
        places = [
            (dim, at)
            for dim, each in enumerate(dims)
            for at, name in enumerate(each)
            if name == within.factor
        ]
        if len(places) != 1:
            raise _MixedError("it puts them together")
        dim, at = places[0]
        return Rows(dim, within.inner * _product(dims[dim][at + 1 :], rule))


def _found(within: _Within, dims: Dims) -> _Within | None:
    return within if any(within.factor in dim for dim in dims) else None


def _product(factors: Sequence[str], rule: Rule) -> IntExpr:
    return prod(rule.sizes[name] for name in factors)


def _is_window(rule: Rule, factor: str) -> bool:
    return any(factor in (read, window.of) for read, window in rule.windows.items())


def _numbers(arg: LocalArg, factor: str) -> bool:
    """Whether an argument of a part depends on which part it is."""
    return any(
        (isinstance(part, Offset) and factor in part.factors)
        or (isinstance(part, Grid) and any(factor in dim for dim in part.dims))
        for part in parts_of(arg)
    )
