"""Polynomials: what holds of numbers holds of them, and division finds what was multiplied."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.expr.polynomial import (
    Monomial,
    Polynomial,
    common,
    ordered,
    plus,
    product,
    quotient,
)

ATOMS = ("a", "b", "c")

monomials = st.lists(st.sampled_from(ATOMS), max_size=3).map(lambda atoms: tuple(sorted(atoms)))
factors = st.integers(min_value=-6, max_value=6).filter(bool)
polynomials: st.SearchStrategy[Polynomial] = st.dictionaries(monomials, factors, max_size=4)
numbers = st.fixed_dictionaries(dict.fromkeys(ATOMS, st.integers(min_value=-4, max_value=4)))


def at(polynomial: Polynomial, known: Mapping[str, int]) -> int:
    """The value of a polynomial where its atoms are numbers."""
    return sum(factor * _of(monomial, known) for monomial, factor in polynomial.items())


def _of(monomial: Monomial, known: Mapping[str, int]) -> int:
    return math.prod(known[str(atom)] for atom in monomial)


@given(polynomials, polynomials, factors, numbers)
def test_sums_and_products_are_those_of_numbers(
    one: Polynomial, other: Polynomial, times: int, known: Mapping[str, int]
) -> None:
    assert at(plus(one, other, times), known) == at(one, known) + at(other, known) * times
    assert at(product(one, other), known) == at(one, known) * at(other, known)


@given(polynomials, polynomials, polynomials)
def test_equal_polynomials_have_equal_forms(
    one: Polynomial, two: Polynomial, three: Polynomial
) -> None:
    assert plus(one, two) == plus(two, one)
    assert product(one, two) == product(two, one)
    assert plus(one, one, -1) == {}
    assert product(plus(one, two), three) == plus(product(one, three), product(two, three))
    assert 0 not in product(plus(one, two), three).values()


@given(polynomials, polynomials)
def test_a_product_is_divided_by_its_factors(one: Polynomial, other: Polynomial) -> None:
    assert quotient(product(one, other), other) == (one if other else None)


@given(polynomials, polynomials)
def test_a_quotient_times_the_divisor_is_the_dividend(one: Polynomial, other: Polynomial) -> None:
    found = quotient(one, other)
    assert found is None or product(found, other) == one


@given(polynomials, polynomials, polynomials)
def test_a_common_factor_divides_both(
    one: Polynomial, other: Polynomial, shared: Polynomial
) -> None:
    found = common(product(one, shared), product(other, shared))
    for each in (product(one, shared), product(other, shared)):
        assert not each or quotient(each, found) is not None
    assert len(found) <= 1


@given(polynomials)
def test_terms_of_most_factors_come_first_and_the_constant_last(polynomial: Polynomial) -> None:
    terms = ordered(polynomial)
    assert dict(terms) == polynomial
    degrees = [len(monomial) for monomial, _ in terms]
    assert degrees == sorted(degrees, reverse=True)
