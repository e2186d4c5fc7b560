"""Open sizes while a model is traced: torch's symbols, and ours.

Each open size is an *unbacked* symbol of torch: one without an example, of which nothing is known
but its range. So whatever torch decides while it traces holds for every size; what it can't decide
it refuses, and what it takes for granted it notes, as a comparison that is judged here afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod

from autopar.ir.expr.expression import (
    UNBOUNDED,
    Binary,
    IntExpr,
    Size,
    add,
    floordiv,
    prod,
)
from autopar.ir.expr.facts import is_at_least, larger, smaller

SymSize = int | torch.SymInt


class Unexpressed(ValueError):
    """A size, or what must hold of sizes, can't be said by expressions."""


def _shape_env() -> ShapeEnv:
    """Returns what knows of no size but those that are given: none may follow from data."""
    return ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


@dataclass
class OpenSizes:
    """The open sizes of one model.

    Attributes:
        env: Where torch keeps what it knows of them.
    """

    env: ShapeEnv = field(default_factory=_shape_env)
    _symbols: dict[str, torch.SymInt] = field(default_factory=dict)
    _sizes: dict[str, Size] = field(default_factory=dict)
    _examples: dict[sympy.Basic, int] = field(default_factory=dict)

    def symbolic(self, expr: IntExpr) -> SymSize:
        """Returns an expression as torch computes with it."""
        if isinstance(expr, Size):
            return self._symbol(expr)
        if isinstance(expr, Binary):
            return _SYMBOLIC[expr.op](self.symbolic(expr.lhs), self.symbolic(expr.rhs))
        assert isinstance(expr, int)
        return expr

    def _symbol(self, size: Size) -> torch.SymInt:
        found = self._symbols.get(size.name)
        if found is None:
            found = self._symbols[size.name] = self.env.create_unbacked_symint()
            _take_for_granted(found >= size.least)
            if size.most < UNBOUNDED:
                _take_for_granted(found <= size.most)
            self._sizes[str(found.node.expr)] = size
            # None is made while ops are traced, which torch would look for in their results.
            self.env.pending_fresh_unbacked_symbols.clear()
        return found

    def fake(self, shape: Sequence[IntExpr], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor of a shape; to be called in the mode of fake tensors."""
        return torch.empty([self.symbolic(size) for size in shape], dtype=dtype, device="cpu")

    def take_example(self, shape: Sequence[IntExpr], sizes: Sequence[int]) -> None:
        """Notes what the open sizes of a shape are in an example."""
        for size, number in zip(shape, sizes, strict=True):
            if isinstance(size, Size):
                self._examples[self._symbol(size).node.expr] = number

    def in_example(self, size: SymSize) -> int:
        """Returns what a size is in the example."""
        return size if isinstance(size, int) else int(size.node.expr.subs(self._examples))

    def expr(self, size: SymSize) -> IntExpr:
        """Returns a size of a tensor that was traced as an expression.

        Raises:
            Unexpressed: If it is none of open sizes.
        """
        return size if isinstance(size, int) else self._expr(size.node.expr)

    def _expr(self, found: sympy.Expr) -> IntExpr:
        if found.is_Integer:
            return int(found)
        if found.is_Symbol and str(found) in self._sizes:
            return self._sizes[str(found)]
        make = _EXPRESSIONS.get(type(found))
        if make is None:
            raise Unexpressed(f"{found} depends on data, or isn't made of + * // min max")
        return make([self._expr(arg) for arg in found.args])

    def told(self, condition: sympy.Basic) -> tuple[str, str]:
        """Returns a condition as users read it, and the names of the sizes in it."""
        used = {self._sizes[symbol].name for symbol in map(str, condition.free_symbols)}
        spelled = _SPELLED.get(type(condition))
        text = str(condition) if spelled is None else f" {spelled} ".join(map(str, condition.args))
        return self.named(text), ", ".join(sorted(used))

    def deciding(self, condition: sympy.Basic) -> str:
        """Returns a range, as users write it, in which a condition is always as planned.

        Returns:
            "" if none is found: the condition compares something else than one size and a number.
        """
        symbol, number = (*condition.args, None, None)[:2]
        size = self._sizes.get(str(symbol))
        if size is None or not isinstance(number, sympy.Integer) or type(condition) not in _KNOWN:
            return ""
        border = int(number)
        for least, most in (
            (size.least, border),
            (size.least, border - 1),
            (border, size.most),
            (border + 1, size.most),
        ):
            ends = {least, least + 1, most - 1, most}
            inside = least <= size.planned <= most
            if inside and len({condition.subs(symbol, each) for each in ends}) == 1:
                first = least if least > 0 else ""
                last = most if most < UNBOUNDED else ""
                return f"{size.name}={first}:{last}"
        return ""

    def named(self, text: str) -> str:
        """Returns a text with the names of sizes in the place of torch's symbols."""
        for symbol, size in self._sizes.items():
            text = re.sub(rf"\b{symbol}\b", size.name, text)
        return text

    def narrow(self) -> Iterator[sympy.Basic]:
        """Narrows sizes to those for which what torch took for granted holds.

        Yields:
            What can't be made true in that way.
        """
        for part, _ in self.taken_for_granted():
            if not self.is_made_true(part):
                yield part

    def taken_for_granted(self) -> Iterator[tuple[sympy.Basic, Any]]:
        """Yields what torch took for granted, each with the stack from which it did."""
        for asserts in self.env.deferred_runtime_asserts.values():
            for each in asserts:
                yield from ((part, each.stack) for part in _conjuncts(each.expr))

    def is_made_true(self, relation: sympy.Basic) -> bool:
        """Narrows sizes to those for which a relation holds; returns whether that can be said."""
        compare = _LESS.get(type(relation))
        try:
            sides = [self._expr(arg) for arg in relation.args]
        except Unexpressed:
            return False
        if isinstance(relation, sympy.Eq):
            left, right = sides
            return left == right or (self._bound(left, right) and self._bound(right, left))
        if compare is None:
            return False
        left, right = sides
        return self._bound(*compare(left, right))

    def _bound(self, less: IntExpr, more: IntExpr) -> bool:
        """Sees to it that one expression is never larger than another."""
        if isinstance(more, Binary) and more.op == "min":
            return self._bound(less, more.lhs) and self._bound(less, more.rhs)
        if is_at_least(more, less):
            return True
        if isinstance(less, Size) and isinstance(more, int):
            return self._limit(replace(less, most=min(less.most, more)))
        if isinstance(more, Size) and isinstance(less, int):
            return self._limit(replace(more, least=max(more.least, less)))
        return False

    def _limit(self, size: Size) -> bool:
        if size.least > size.most:
            return False
        planned = min(max(size.planned, size.least), size.most)
        name = str(self._symbols[size.name].node.expr)
        self._sizes[name] = replace(size, planned=planned)
        return True

    @property
    def sizes(self) -> Mapping[str, Size]:
        """The open sizes by name, with the ranges that they have by now."""
        return {size.name: size for size in self._sizes.values()}


@dataclass(frozen=True, slots=True)
class OpenArgument:
    """An open size as an argument of a node of a graph, which torch warns of as it is."""

    size: torch.SymInt


def is_static(tensor: torch.Tensor) -> bool:
    """Returns whether no size of a tensor is open."""
    return all(isinstance(size, int) for size in tensor.shape)


def is_same_shape(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors always have the same shape."""
    pairs = zip(one.shape, other.shape, strict=False)
    return one.ndim == other.ndim and all(statically_known_true(a == b) for a, b in pairs)


def _take_for_granted(condition: bool | torch.SymBool) -> None:
    torch._check(condition)  # type: ignore[no-untyped-call]


def _conjuncts(relation: sympy.Basic) -> Iterable[sympy.Basic]:
    return relation.args if isinstance(relation, sympy.And) else (relation,)


_KNOWN = (sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
_SPELLED = {sympy.Eq: "==", sympy.Ne: "!="}
_LESS: Mapping[type, Callable[[IntExpr, IntExpr], tuple[IntExpr, IntExpr]]] = {
    sympy.LessThan: lambda left, right: (left, right),
    sympy.StrictLessThan: lambda left, right: (left + 1, right),
    sympy.GreaterThan: lambda left, right: (right, left),
    sympy.StrictGreaterThan: lambda left, right: (right + 1, left),
}
"""What must not be larger than what, of each relation."""


def _remainder(args: list[IntExpr]) -> IntExpr:
    dividend, divisor = args
    return dividend - dividend // divisor * divisor


def _power(args: list[IntExpr]) -> IntExpr:
    base, exponent = args
    if not isinstance(exponent, int) or exponent < 0:
        raise Unexpressed(f"a power of {exponent}")
    return prod([base] * exponent)


_EXPRESSIONS: Mapping[type, Callable[[list[IntExpr]], IntExpr]] = {
    sympy.Add: lambda args: reduce(add, args),
    sympy.Mul: prod,
    sympy.Pow: _power,
    FloorDiv: lambda args: floordiv(*args),
    CleanDiv: lambda args: floordiv(*args),
    Mod: _remainder,
    PythonMod: _remainder,
    Max: lambda args: reduce(larger, args),
    Min: lambda args: reduce(smaller, args),
}
_SYMBOLIC: Mapping[str, Callable[[SymSize, SymSize], SymSize]] = {
    "+": lambda left, right: left + right,
    "*": lambda left, right: left * right,
    "//": lambda left, right: left // right,
    "min": torch.sym_min,
    "max": torch.sym_max,
}
