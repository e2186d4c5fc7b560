"""Open sizes while a model is traced: torch's symbols, and ours.

Each open size is an *unbacked* symbol of torch: one without an example, of which nothing is known
but its range. So whatever torch decides while it traces holds for every size; what it can't decide
it refuses, and what it takes for granted it notes, as a comparison that is judged here afterwards.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from autopar.base.errors import Loc
from autopar.frontend.lower.asking import AskingEnv, is_sure
from autopar.frontend.lower.proof import holds
from autopar.frontend.lower.relations import (
    is_implied,
    is_possible,
    relation_of,
    without_implied,
)
from autopar.frontend.lower.symbols import (
    EXPRESSIONS,
    LESS,
    SPELLED,
    SYMBOLIC,
    SymSize,
    Unexpressed,
    as_limit,
)
from autopar.ir.builds.manifest import CHECKED, ReportEntry
from autopar.ir.expr.expression import (
    UNBOUNDED,
    Binary,
    Expr,
    IntExpr,
    Size,
    add,
    common_factor,
    evaluate,
    exact_quotient,
    sizes_of,
    substitute,
)
from autopar.ir.expr.facts import bounds, is_at_least
from autopar.ir.expr.given import Given
from autopar.ir.expr.growing import least_for, most_for
from autopar.ir.expr.multiples import equal_for_multiples, in_steps
from autopar.ir.expr.relation import Relation

LIMITS: Mapping[str, str] = {"least": "at least", "most": "at most", "step": "a multiple of"}
"""What narrows a size, and how reports say it."""


@dataclass
class OpenSizes:
    """The open sizes of one model.

    Attributes:
        env: Where torch keeps what it knows of them.
    """

    env: ShapeEnv = field(default_factory=AskingEnv)
    _symbols: dict[str, torch.SymInt] = field(default_factory=dict)
    _ranges: dict[str, Size] = field(default_factory=dict)
    _defined: dict[str, sympy.Expr] = field(default_factory=dict)
    _kept: dict[sympy.Basic, Loc] = field(default_factory=dict)
    _facts: Given = field(default_factory=Given)
    _facts_for: tuple[object, ...] = ()
    _proven: dict[sympy.Basic, bool | None] = field(default_factory=dict)
    _proven_for: tuple[object, ...] = ()

    def symbolic(self, expr: IntExpr) -> SymSize:
        """Returns an expression as torch computes with it."""
        if isinstance(expr, Size):
            return self.symbol(expr)
        if isinstance(expr, Binary):
            return SYMBOLIC[expr.op](self.symbolic(expr.lhs), self.symbolic(expr.rhs))
        assert isinstance(expr, int)
        return expr

    def symbol(self, size: Size) -> torch.SymInt:
        """Returns the symbol of an open size."""
        found = self._symbols.get(size.name)
        if found is None:
            found = self._symbols[size.name] = self.env.create_unbacked_symint()
            self.take_for_granted(size)
            self._ranges[str(found.node.expr)] = size
            # None is made while ops are traced, which torch would look for in their results.
            self.env.pending_fresh_unbacked_symbols.clear()
        return found

    def fake(self, shape: Sequence[IntExpr], dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor of a shape; to be called in the mode of fake tensors."""
        return torch.empty([self.symbolic(size) for size in shape], dtype=dtype, device="cpu")

    def take_for_granted(self, size: Size) -> None:
        """Lets torch know the range of a size."""
        symbol: Any = self._symbols[size.name]
        torch._check(symbol >= size.least)  # type: ignore[no-untyped-call]
        if size.most < UNBOUNDED:
            torch._check(symbol <= size.most)  # type: ignore[no-untyped-call]

    def expr(self, size: SymSize) -> IntExpr:
        """Returns a size of a tensor that was traced as an expression.

        Raises:
            Unexpressed: If it is none of open sizes.
        """
        return size if isinstance(size, int) else self._simplified(size.node.expr)

    def _simplified(self, found: sympy.Basic) -> IntExpr:
        """Returns an expression, simplified by what torch takes for granted."""
        return self.given.simplified(self._expr(found))

    def _expr(self, found: sympy.Expr) -> IntExpr:
        if found.is_Integer:
            return int(found)
        if found.is_Symbol and str(found) in self._defined:
            return self._expr(self._defined[str(found)])
        if found.is_Symbol and str(found) in self._ranges:
            return self._ranges[str(found)]
        make = EXPRESSIONS.get(type(found))
        if make is None:
            raise Unexpressed(f"{found} depends on data, or isn't made of + * // min max")
        expr = make([self._expr(arg) for arg in found.args])
        least, most = bounds(expr)
        return int(least) if least == most else expr

    def proven(self, condition: sympy.Basic) -> bool | None:
        """Returns whether a condition holds for all sizes, or for none; None if neither is sure."""
        known = self._known()
        if known != self._proven_for:
            self._proven.clear()
            self._proven_for = known
        if condition not in self._proven:
            self._proven[condition] = self._prove(condition)
        return self._proven[condition]

    def _prove(self, condition: sympy.Basic) -> bool | None:
        try:
            found = holds(condition, self._simplified)
        except Unexpressed:
            return None
        relation = relation_of(condition, self._expr) if found is None else None
        return True if relation is not None and is_implied(relation, self.given) else found

    def _known(self) -> tuple[object, ...]:
        granted = self.env.num_deferred_runtime_asserts
        return (*self._ranges.values(), *self._defined, granted, len(self._kept))

    @property
    def given(self) -> Given:
        """What torch takes for granted, as facts: in the end that holds in every call."""
        known = self._known()
        if known != self._facts_for:
            conditions = [*(part for part, _ in self.taken_for_granted()), *self._kept]
            found = (relation_of(each, self._expr) for each in conditions)
            self._facts = Given(each for each in found if each is not None)
            self._facts_for = known
        return self._facts

    def keep(self, condition: sympy.Basic, loc: Loc) -> bool:
        """Keeps a condition as a relation that each call checks; returns whether it is a plain one.

        Args:
            condition: The condition.
            loc: What needs it.
        """
        relation = relation_of(condition, self._expr, loc)
        if relation is None or not is_possible(relation):
            return False
        self._kept.setdefault(condition, loc)
        return self._plan_within(relation)

    def _plan_within(self, relation: Relation) -> bool:
        """Plans for smaller sizes where a relation needs that; returns whether it holds then."""
        used = [symbol for symbol, size in self._ranges.items() if size.name in relation.names]
        while not relation.is_planned:
            before = {symbol: self._ranges[symbol] for symbol in used}
            self._ranges.update({symbol: _halved(size) for symbol, size in before.items()})
            if all(self._ranges[symbol] == size for symbol, size in before.items()):
                return False
            relation = relation.at({str(size): size for size in self._ranges.values()})
        return True

    @property
    def relations(self) -> tuple[Relation, ...]:
        """What each call checks, without what follows from the rest."""
        found = (relation_of(each, self._expr, loc) for each, loc in self._kept.items())
        return without_implied(each for each in found if each is not None)

    def checked(self) -> Iterator[ReportEntry]:
        """Yields what each call checks."""
        for each in self.relations:
            yield ReportEntry(CHECKED, ", ".join(sorted(each.names)), each.told, each.loc)

    def renewed(self, expr: IntExpr) -> IntExpr:
        """Returns an expression with the ranges that its sizes have by now."""
        return substitute(expr, {str(size): size for size in self._ranges.values()})

    def are_known(self, condition: sympy.Basic) -> bool:
        """Returns whether a condition is about open sizes of the model alone."""
        return {str(symbol) for symbol in condition.free_symbols} <= self._ranges.keys()

    def told(self, condition: sympy.Basic) -> tuple[str, str]:
        """Returns a condition as users read it, and the names of the sizes in it."""
        symbols = map(str, condition.free_symbols)
        used = {self._ranges[symbol].name for symbol in symbols if symbol in self._ranges}
        condition = as_limit(condition)
        spelled = SPELLED.get(type(condition))
        text = str(condition) if spelled is None else f" {spelled} ".join(map(str, condition.args))
        return self.named(text), ", ".join(sorted(used))

    def names(self, sizes: Iterable[SymSize | IntExpr]) -> list[str]:
        """Returns the names of the open sizes of which some are made, each once."""
        exprs = (self.expr(size) if isinstance(size, torch.SymInt) else size for size in sizes)
        found = map(sizes_of, exprs)
        return list(dict.fromkeys(each.name for some in found for each in sorted(some, key=str)))

    def named(self, text: str) -> str:
        """Returns a text with the names of sizes in the place of torch's symbols, and of ours."""
        for symbol, size in self._ranges.items():
            text = re.sub(rf"\b{symbol}\b|{re.escape(str(size))}\b", size.name, text)
        return text

    def ranges_within(self, relation: sympy.Basic) -> list[str]:
        """Returns ranges of several sizes, as users write them, within which a relation holds.

        All may be as large; there are none where that doesn't make it true.
        """
        try:
            used = {size.name for arg in relation.args for size in sizes_of(self._expr(arg))}
        except Unexpressed:
            return []
        if len(used) < 2:
            return []
        known = {symbol: size for symbol, size in self._ranges.items() if size.name in used}
        most = self._largest(relation, known)
        return [f"{each.name}={each.least or ''}:{most}" for each in known.values() if most]

    def _largest(self, relation: sympy.Basic, known: Mapping[str, Size]) -> int:
        """Returns how large sizes may be, by symbol, so that a relation holds; 0 if it doesn't."""
        least = max(1, *(size.least for size in known.values()))

        def holds(most: int) -> bool:
            self._ranges.update({s: replace(size, most=most) for s, size in known.items()})
            limited = dict(self._ranges)
            found = self._is_made_true(relation) and self._ranges == limited
            self._ranges.update(known)
            return found

        fits = bisect_left(range(least, UNBOUNDED), True, key=lambda most: not holds(most))
        return least + fits - 1 if fits else 0

    def narrow(self) -> Iterator[sympy.Basic]:
        """Narrows sizes to those for which what torch took for granted holds.

        Yields:
            What can't be made true in that way.
        """
        for part, _ in self.taken_for_granted():
            if not self.is_made_true(part) and not self.is_defined(part):
                yield part

    def taken_for_granted(self) -> Iterator[tuple[sympy.Basic, Any]]:
        """Yields what torch took for granted, each with the stack from which it did."""
        for asserts in self.env.deferred_runtime_asserts.values():
            for each in asserts:
                yield from ((part, each.stack) for part in conjuncts(each.expr))

    def is_made_true(self, relation: sympy.Basic) -> bool:
        """Narrows sizes to those for which a relation holds; returns whether that can be said."""
        if isinstance(relation, sympy.Or):
            planned = [each for each in relation.args if self._as_planned(each) == sympy.true]
            return any(map(self.is_made_true, planned))
        if self._is_made_true(relation):
            return True
        before = dict(self._ranges)
        for symbol in map(str, relation.free_symbols):
            if symbol in before and not before[symbol].least:
                self._limit(replace(before[symbol], least=1))
        if self._is_made_true(relation):
            return True
        self._ranges.update(before)
        return False

    def is_defined(self, relation: sympy.Basic) -> bool:
        """Takes one size for what it must be equal to; returns whether a relation says that.

        From then on it is no open size any more, but an expression of others, as the length of a
        mask is that of the past and the present together.
        """
        if not isinstance(relation, sympy.Eq):
            return False
        order = list(self._ranges)
        sides = (relation.args, relation.args[::-1])
        found = [(str(one), other) for one, other in sides if str(one) in self._ranges]
        # Of two sizes, the one that came later.
        for symbol, other in sorted(found, key=lambda pair: order.index(pair[0]), reverse=True):
            if symbol not in self._defined and self._can_be(self._ranges[symbol], other):
                self._defined[symbol] = other
                return True
        return False

    def _can_be(self, size: Size, other: sympy.Expr) -> bool:
        """Returns whether an expression of other sizes is never too small or large for a size."""
        try:
            expr = self._expr(other)
        except Unexpressed:
            return False
        if size.name in {each.name for each in sizes_of(expr)}:
            return False
        return size.most == UNBOUNDED and is_at_least(expr, size.least)

    def _as_planned(self, relation: sympy.Basic) -> sympy.Basic:
        """Returns what a relation is at the sizes that are chosen."""
        sizes = {symbol: self._ranges.get(str(symbol)) for symbol in relation.free_symbols}
        chosen = {symbol: self._chosen(size) for symbol, size in sizes.items() if size is not None}
        return relation.subs(chosen)

    def _chosen(self, size: Size) -> int:
        """Returns the number for which a relation that holds for some sizes only must hold."""
        return size.planned

    def _is_made_true(self, relation: sympy.Basic) -> bool:
        compare = LESS.get(type(relation))
        try:
            sides = [self._expr(arg) for arg in relation.args]
        except Unexpressed:
            return False
        if isinstance(relation, sympy.Ne):
            return self._keep_apart(*sides)
        if isinstance(relation, sympy.Eq):
            return self._are_made_equal(*sides)
        return compare is not None and self._bound(*compare(*sides))

    def _are_made_equal(self, left: IntExpr, right: IntExpr) -> bool:
        left, right = without_common(left, right)
        if left == right or (self._bound(left, right) and self._bound(right, left)):
            return True
        found = equal_for_multiples(left, right)
        return found is not None and self._limit(found)

    def _bound(self, less: IntExpr, more: IntExpr) -> bool:
        """Sees to it that one expression is never larger than another."""
        if isinstance(more, Binary) and more.op == "min":
            return self._bound(less, more.lhs) and self._bound(less, more.rhs)
        if is_at_least(more, less):
            return True
        if isinstance(less, int) and (found := least_for(more, less)) is not None:
            return self._limit(replace(found[0], least=found[1]))
        if isinstance(more, int) and (found := most_for(less, more)) is not None:
            return self._limit(replace(found[0], most=found[1]))
        return False

    def _keep_apart(self, size: IntExpr, other: IntExpr) -> bool:
        """Sees to it that a size is never a number, by the side on which the chosen one is."""
        if isinstance(size, int):
            size, other = other, size
        if not isinstance(other, int):
            return is_at_least(size, add(other, 1)) or is_at_least(other, add(size, 1))
        chosen = evaluate(size, {str(each): self._chosen(each) for each in sizes_of(size)})
        if chosen > other:
            return self._bound(other + 1, size)
        return chosen < other and self._bound(size, other - 1)

    def _limit(self, size: Size) -> bool:
        """Narrows a size to what two ranges have in common; returns whether that is anything."""
        symbol, known = next(each for each in self._ranges.items() if each[1].name == size.name)
        least, most = max(size.least, known.least), min(size.most, known.most)
        step = math.lcm(size.step, known.step)
        found = in_steps(replace(size, least=least, most=most), step) if least <= most else None
        if found is not None:
            self._ranges[symbol] = found
        return found is not None

    @property
    def sizes(self) -> Mapping[str, Size]:
        """The open sizes by name, with the ranges that they have by now."""
        return {size.name: size for size in self._ranges.values()}


@dataclass(frozen=True, slots=True)
class OpenArgument:
    """An open size as an argument of a node of a graph, which torch warns of as it is."""

    size: torch.SymInt


def _halved(size: Size) -> Size:
    """Returns a size that is planned for half as much, as far as its range allows."""
    return replace(size, planned=max(size.planned // size.step // 2 * size.step, size.least))


def without_common(left: IntExpr, right: IntExpr) -> tuple[IntExpr, IntExpr]:
    """Returns both sides of an equality without the sizes by which both are multiplied."""
    if not isinstance(left, Expr) or not isinstance(right, Expr):
        return left, right
    common = common_factor(left, right)
    one, other = exact_quotient(left, common), exact_quotient(right, common)
    return (left, right) if one is None or other is None else (one, other)


def is_static(tensor: torch.Tensor) -> bool:
    """Returns whether no size of a tensor is open."""
    return all(isinstance(size, int) for size in tensor.shape)


def is_same_shape(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors always have the same shape."""
    pairs = zip(one.shape, other.shape, strict=False)
    return one.ndim == other.ndim and all(is_sure(a == b) for a, b in pairs)


def conjuncts(relation: sympy.Basic) -> Iterable[sympy.Basic]:
    """Returns what must hold so that a relation does."""
    return relation.args if isinstance(relation, sympy.And) else (relation,)
