"""Expressions: integers that depend on a rank's coordinates in the mesh, and on open sizes.

Ranks share one program. Where a size, an offset or a bound differs between them, the program
holds an expression of mesh coordinates, which is resolved when a rank loads its program. So the
size of a program, and the time to compile it, don't grow with the number of ranks. A size that is
left open, as that of a batch, is another variable, which is known when a batch arrives.

    >>> size = maximum(0, minimum(3, 8 - 3 * Coord("tp")))
    >>> str(size)
    'max(0, min(3, tp * -3 + 8))'
    >>> [evaluate(size, {"tp": rank}) for rank in range(4)]
    [3, 3, 2, 0]

Expressions of open sizes are kept in a form in which equal ones look the same, as far as sums and
products go; what can be said of them for every size is in `autopar.ir.expr.facts`.

    >>> batch, length = Size("batch"), Size("length")
    >>> (batch + 1) * length == length + length * batch
    True
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from autopar.ir.expr import polynomial
from autopar.ir.expr.polynomial import Polynomial


class Expr:
    """An integer expression, built with operators and the functions below."""

    __slots__ = ()

    def __add__(self, other: IntExpr) -> IntExpr:
        return add(self, other)

    def __radd__(self, other: IntExpr) -> IntExpr:
        return add(other, self)

    def __sub__(self, other: IntExpr) -> IntExpr:
        return add(self, multiply(other, -1))

    def __rsub__(self, other: IntExpr) -> IntExpr:
        return add(other, multiply(self, -1))

    def __mul__(self, other: IntExpr) -> IntExpr:
        return multiply(self, other)

    def __rmul__(self, other: IntExpr) -> IntExpr:
        return multiply(other, self)

    def __floordiv__(self, other: IntExpr) -> IntExpr:
        return floordiv(self, other)

    def __rfloordiv__(self, other: IntExpr) -> IntExpr:
        return floordiv(other, self)


IntExpr = int | Expr


@dataclass(frozen=True, slots=True)
class Coord(Expr):
    """The rank's coordinate along the mesh axis `axis`, from 0."""

    axis: str

    def __str__(self) -> str:
        return self.axis


MOST_QUOTIENTS = 4096
"""How many quotients are known from before: blocks of the same sizes are asked for again."""

UNBOUNDED = 2**31 - 1
"""How large an open size may be at most, where nothing says less."""


@dataclass(frozen=True, slots=True)
class Size(Expr):
    """A size that is left open.

    Attributes:
        name: An identifier.
        least, most: What it may be.
        planned: For which size decisions are made.
        step: It is a multiple of this, as are `least` and `planned`.
    """

    name: str
    least: int = 0
    most: int = UNBOUNDED
    planned: int = 8
    step: int = 1

    def admits(self, number: int) -> bool:
        """Returns whether it may be this number."""
        return self.least <= number <= self.most and number % self.step == 0

    def __str__(self) -> str:
        return f"${self.name}"


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """`op` applied to two operands; `op` is one of `+ * // min max`."""

    op: str
    lhs: IntExpr
    rhs: IntExpr
    # Equal terms are looked up and put in order again and again.
    _hash: int = field(init=False, repr=False, compare=False, default=0)
    _text: str = field(init=False, repr=False, compare=False, default="")

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.op, self.lhs, self.rhs)))
        return self._hash

    def __str__(self) -> str:
        if not self._text:
            object.__setattr__(self, "_text", self._spelled())
        return self._text

    def _spelled(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.lhs}, {self.rhs})"
        return f"{self._operand(self.lhs)} {self.op} {self._operand(self.rhs, right=True)}"

    def _operand(self, side: IntExpr, right: bool = False) -> str:
        if not isinstance(side, Binary) or side.op in ("min", "max"):
            return str(side)
        # Operators group from the left, so on the right equal precedence needs parentheses too.
        loose = _PRECEDENCE[side.op] - _PRECEDENCE[self.op] < (1 if right else 0)
        return f"({side})" if loose else str(side)


_PRECEDENCE = {"+": 1, "*": 2, "//": 2}
ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "min": min,
    "max": max,
}
"""What each operator makes of numbers."""


def is_open(expr: IntExpr) -> bool:
    """Returns whether an expression depends on an open size."""
    if isinstance(expr, Binary):
        return is_open(expr.lhs) or is_open(expr.rhs)
    return isinstance(expr, Size)


def add(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns `lhs + rhs`, constants folded and kept on the right."""
    if isinstance(lhs, int):
        if isinstance(rhs, int):
            return lhs + rhs
        lhs, rhs = rhs, lhs
    if rhs == 0:
        return lhs
    if is_open(lhs) or is_open(rhs):
        return from_terms(polynomial.plus(terms_of(lhs), terms_of(rhs)))
    if isinstance(lhs, Binary) and lhs.op == "+" and isinstance(rhs, int):
        constant = lhs.rhs
        if isinstance(constant, int):
            return add(lhs.lhs, constant + rhs)
    return Binary("+", lhs, rhs)


def multiply(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns `lhs * rhs`, constants folded and kept on the right."""
    if isinstance(lhs, int):
        if isinstance(rhs, int):
            return lhs * rhs
        lhs, rhs = rhs, lhs
    if isinstance(rhs, int) and rhs in (0, 1):
        return lhs if rhs else 0
    if is_open(lhs) or is_open(rhs):
        return from_terms(polynomial.product(terms_of(lhs), terms_of(rhs)))
    if isinstance(rhs, int) and isinstance(lhs, Binary) and isinstance(lhs.rhs, int):
        if lhs.op == "*":
            return multiply(lhs.lhs, lhs.rhs * rhs)
        if lhs.op == "+":
            return add(multiply(lhs.lhs, rhs), lhs.rhs * rhs)
    return Binary("*", lhs, rhs)


def prod(sizes: Iterable[IntExpr]) -> IntExpr:
    """Returns the product; 1 of none."""
    return math.prod(sizes)


def floordiv(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns `lhs // rhs`, rounded towards minus infinity."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return lhs // rhs
    if rhs == 1:
        return lhs
    if is_open(lhs) or is_open(rhs):
        return _open_floordiv(lhs, rhs)
    return Binary("//", lhs, rhs)


def ceildiv(lhs: IntExpr, rhs: int) -> IntExpr:
    """Returns `lhs / rhs`, rounded towards infinity."""
    return -(-lhs // rhs) if isinstance(lhs, int) else floordiv(lhs + (rhs - 1), rhs)


def exact_quotient(lhs: IntExpr, rhs: IntExpr) -> IntExpr | None:
    """Returns what `rhs` is always to be multiplied by to give `lhs`; None if nothing is."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return None if rhs == 0 or lhs % rhs else lhs // rhs
    found = polynomial.quotient(terms_of(lhs), terms_of(rhs))
    return None if found is None else from_terms(found)


def common_factor(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns the largest number, times open sizes, that always divides both.

    Where one is a multiple of the other it is that other, whatever it is made of.
    """
    if isinstance(lhs, int) and isinstance(rhs, int):
        return math.gcd(lhs, rhs)
    one, other = terms_of(lhs), terms_of(rhs)
    for less, more, size in ((one, other, lhs), (other, one, rhs)):
        if polynomial.quotient(more, less) is not None:
            return size
    return from_terms(polynomial.common(one, other))


@lru_cache(MOST_QUOTIENTS)
def _open_floordiv(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    dividend = terms_of(lhs)
    if not isinstance(rhs, int) or rhs <= 0:
        exact = polynomial.quotient(dividend, terms_of(rhs))
        # Of a divisor that may be 0, the quotient is left for whoever knows its size.
        return Binary("//", lhs, rhs) if exact is None else from_terms(exact)
    parts = {monomial: divmod(factor, rhs) for monomial, factor in dividend.items()}
    whole = {monomial: quotient for monomial, (quotient, _) in parts.items() if quotient}
    rest = {monomial: odd for monomial, (_, odd) in parts.items() if odd}
    constant = rest.pop((), 0)
    if not rest:
        return from_terms(whole)
    shared = math.gcd(rhs, *rest.values())
    less = {monomial: factor // shared for monomial, factor in rest.items()}
    divided = _divided(add(from_terms(less), constant // shared), rhs // shared)
    return add(from_terms(whole), divided)


def _divided(lhs: IntExpr, rhs: int) -> IntExpr:
    """Returns `lhs // rhs`; where `lhs` is a quotient and a number, as one division."""
    sum_of = (lhs.lhs, lhs.rhs) if isinstance(lhs, Binary) and lhs.op == "+" else (lhs, 0)
    inner, more = sum_of
    if isinstance(inner, Binary) and inner.op == "//" and isinstance(more, int):
        divisor, is_size = inner.rhs, _is_part_of(inner) is not None
        if isinstance(divisor, int) and divisor > 0 and not is_size:
            return floordiv(add(inner.lhs, more * divisor), divisor * rhs)
    return Binary("//", lhs, rhs)


def minimum(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns the smaller of two expressions."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return min(lhs, rhs)
    return lhs if lhs == rhs else Binary("min", lhs, rhs)


def maximum(lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """Returns the larger of two expressions."""
    if isinstance(lhs, int) and isinstance(rhs, int):
        return max(lhs, rhs)
    return lhs if lhs == rhs else Binary("max", lhs, rhs)


def terms_of(expr: IntExpr) -> Polynomial:
    """Returns an expression as a polynomial of what isn't a sum or a product."""
    if isinstance(expr, int):
        return {(): expr} if expr else {}
    if isinstance(expr, Binary) and expr.op == "+":
        return polynomial.plus(terms_of(expr.lhs), terms_of(expr.rhs))
    if isinstance(expr, Binary) and expr.op == "*":
        return polynomial.product(terms_of(expr.lhs), terms_of(expr.rhs))
    if isinstance(expr, Size) and expr.step > 1:
        return {(Binary("//", expr, expr.step),): expr.step}
    return {(expr,): 1}


def from_terms(terms: Polynomial) -> IntExpr:
    """Returns the expression of a polynomial: the same for equal ones."""
    found: IntExpr = 0
    for monomial, factor in polynomial.ordered(terms):
        term = _term(cast(tuple[Expr, ...], monomial), factor)
        found = term if found == 0 else Binary("+", found, term)
    return found


def _term(atoms: tuple[Expr, ...], factor: int) -> IntExpr:
    if not atoms:
        return factor
    atoms, factor = _multiples(atoms, factor)
    found = atoms[0]
    for atom in atoms[1:]:
        found = Binary("*", found, atom)
    return found if factor == 1 else Binary("*", found, factor)


def _multiples(atoms: tuple[Expr, ...], factor: int) -> tuple[tuple[Expr, ...], int]:
    """Returns a term in which sizes stand for what they are multiples of, as far as that goes."""
    found: list[Expr] = []
    for atom in atoms:
        size = _is_part_of(atom)
        if size is not None and factor % size.step == 0:
            found.append(size)
            factor //= size.step
        else:
            found.append(atom)
    return tuple(found), factor


def _is_part_of(atom: Expr) -> Size | None:
    """Returns the size of which an atom is the part that `terms_of` makes it of."""
    if isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.lhs, Size):
        return atom.lhs if atom.rhs == atom.lhs.step else None
    return None


class AsPlanned(dict[str, int]):
    """Coordinates, and sizes; open ones that aren't named are as planned."""


class FromFirst(AsPlanned):
    """The same, 0 along every axis that isn't named: by default those of the first rank."""

    def __missing__(self, axis: str) -> int:
        """Returns 0."""
        return 0


def evaluate(expr: IntExpr, coords: Mapping[str, int]) -> int:
    """Returns the value of `expr` on the rank with these mesh coordinates.

    Args:
        expr: The expression.
        coords: By mesh axis; sizes that are open by their names behind a `$`, as they are printed.

    Raises:
        KeyError: If `coords` lacks an axis, or a size, that `expr` uses.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, Coord):
        return coords[expr.axis]
    if isinstance(expr, Size):
        name = str(expr)
        is_planned = isinstance(coords, AsPlanned) and name not in coords
        return expr.planned if is_planned else coords[name]
    if isinstance(expr, Binary):
        return ARITHMETIC[expr.op](evaluate(expr.lhs, coords), evaluate(expr.rhs, coords))
    raise TypeError(f"not a rank expression: {expr!r}")


def planned(expr: IntExpr) -> int:
    """Returns the value on the first rank, at the sizes for which decisions are made."""
    return expr if isinstance(expr, int) else evaluate(expr, _PLANNED)


_PLANNED = FromFirst()


def substitute(expr: IntExpr, known: Mapping[str, IntExpr]) -> IntExpr:
    """Returns an expression in which what is known takes the place of variables.

    Args:
        expr: The expression.
        known: By mesh axis; that of open sizes by their names behind a `$`.
    """
    if isinstance(expr, (Coord, Size)):
        return known.get(str(expr), expr)
    if isinstance(expr, Binary):
        fold = FOLD[expr.op]
        return fold(substitute(expr.lhs, known), substitute(expr.rhs, known))
    return expr


FOLD: Mapping[str, Callable[[IntExpr, IntExpr], IntExpr]] = {
    "+": add,
    "*": multiply,
    "//": floordiv,
    "min": minimum,
    "max": maximum,
}
"""What makes an expression of each operator."""


def sizes_of(expr: IntExpr) -> frozenset[Size]:
    """Returns the open sizes on which `expr` depends."""
    if isinstance(expr, Size):
        return frozenset((expr,))
    if isinstance(expr, Binary):
        return sizes_of(expr.lhs) | sizes_of(expr.rhs)
    return frozenset()


def shape_str(shape: Iterable[IntExpr]) -> str:
    """Returns a shape as text: `[$batch, 4]`."""
    return f"[{', '.join(map(str, shape))}]"


def axes_of(expr: IntExpr) -> frozenset[str]:
    """Returns the mesh axes on which `expr` depends."""
    if isinstance(expr, Coord):
        return frozenset((expr.axis,))
    if isinstance(expr, Binary):
        return axes_of(expr.lhs) | axes_of(expr.rhs)
    return frozenset()
