"""Polynomials with integer coefficients: what expressions of open sizes are equal by.

A monomial is a sorted tuple of atoms, with repetitions; a polynomial gives each a coefficient, and
none is 0. What an atom is doesn't matter here, but that it can be told from others.

    >>> b = {("b",): 1}
    >>> product(plus(b, {(): 1}), plus(b, {(): -1}))
    {('b', 'b'): 1, (): -1}
    >>> quotient({("b", "b"): 1, (): -1}, plus(b, {(): 1}))
    {('b',): 1, (): -1}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from functools import reduce
from math import gcd

Monomial = tuple[Hashable, ...]
Polynomial = Mapping[Monomial, int]


def plus(one: Polynomial, other: Polynomial, times: int = 1) -> Polynomial:
    """Returns `one + other * times`."""
    found = dict(one)
    for monomial, coefficient in other.items():
        found[monomial] = found.get(monomial, 0) + coefficient * times
    return {monomial: coefficient for monomial, coefficient in found.items() if coefficient}


def product(one: Polynomial, other: Polynomial) -> Polynomial:
    """Returns `one * other`."""
    found: Counter[Monomial] = Counter()
    for left, factor in one.items():
        for right, coefficient in other.items():
            found[_sorted((*left, *right))] += factor * coefficient
    return {monomial: coefficient for monomial, coefficient in found.items() if coefficient}


def quotient(one: Polynomial, other: Polynomial) -> Polynomial | None:
    """Returns the polynomial that `other` is to be multiplied by; None if there is none.

    Where `other` is 0 for some values of the atoms, so is `one`.
    """
    if not other:
        return None
    rest, found = one, dict[Monomial, int]()
    leading = _leading(other)
    while rest:
        monomial = _leading(rest)
        missing = _without(monomial, leading)
        coefficient, odd = divmod(rest[monomial], other[leading])
        if missing is None or odd:
            return None
        found[missing] = coefficient
        rest = plus(rest, product({missing: coefficient}, other), -1)
    return found


def common(one: Polynomial, other: Polynomial) -> Polynomial:
    """Returns the largest monomial that divides every term of both."""
    terms = [*one.items(), *other.items()]
    if not terms:
        return {}
    atoms = reduce(lambda left, right: left & right, (Counter(atoms) for atoms, _ in terms))
    return {_sorted(tuple(atoms.elements())): gcd(*(coefficient for _, coefficient in terms))}


def ordered(polynomial: Polynomial) -> list[tuple[Monomial, int]]:
    """Returns the terms, those of most factors first; the constant is the last."""
    return sorted(polynomial.items(), key=lambda term: _rank(term[0]))


def _leading(polynomial: Polynomial) -> Monomial:
    return min(polynomial, key=_rank)


def _rank(monomial: Monomial) -> tuple[int, list[str]]:
    # By degree, then by the atoms: the leading term of a product is the product of leading terms.
    return -len(monomial), [str(atom) for atom in monomial]


def _sorted(monomial: Monomial) -> Monomial:
    return tuple(sorted(monomial, key=str))


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """Returns the other factor of a monomial; None if it hasn't this one."""
    left = Counter(monomial)
    left.subtract(factor)
    return None if min(left.values(), default=0) < 0 else _sorted(tuple(left.elements()))
