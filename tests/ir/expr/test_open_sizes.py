"""Expressions of open sizes: equal ones look the same, and numbers may be put in at any time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autopar.ir.expr.expression import (
    FOLD,
    Coord,
    FromFirst,
    IntExpr,
    Size,
    ceildiv,
    common_factor,
    evaluate,
    exact_quotient,
    maximum,
    planned,
    prod,
    sizes_of,
    substitute,
)
from autopar.ir.expr.parse import parse
from tests.ir import strategies

B, L = Size("batch"), Size("length", 1, 64, 16)

forms = strategies.folded(strategies.OPEN)
"""Expressions as the functions that are tested make them."""

numbers = st.fixed_dictionaries(
    {str(size): st.integers(min_value=0, max_value=9) for size in strategies.OPEN}
)
some = st.dictionaries(
    st.sampled_from([str(size) for size in strategies.OPEN]),
    st.integers(min_value=0, max_value=9),
)


def applied(op: str, lhs: IntExpr, rhs: IntExpr) -> IntExpr:
    """The operation; the example is dropped where it divides by 0."""
    assume(op != "//" or rhs != 0)
    return FOLD[op](lhs, rhs)


@given(st.sampled_from(sorted(FOLD)), forms, forms, numbers)
def test_putting_numbers_in_commutes_with_every_operation(
    op: str, lhs: IntExpr, rhs: IntExpr, known: Mapping[str, int]
) -> None:
    left, right = substitute(lhs, known), substitute(rhs, known)
    expected = applied(op, left, right)
    assert isinstance(expected, int)
    assert substitute(applied(op, lhs, rhs), known) == expected


@given(st.sampled_from(("+", "*")), forms, forms, some)
def test_putting_some_numbers_in_commutes_with_sums_and_products(
    op: str, lhs: IntExpr, rhs: IntExpr, known: Mapping[str, int]
) -> None:
    expected = FOLD[op](substitute(lhs, known), substitute(rhs, known))
    assert substitute(FOLD[op](lhs, rhs), known) == expected


@given(forms)
def test_forms_are_final(form: IntExpr) -> None:
    assert substitute(form, {}) == form


@given(forms, forms, forms)
def test_equal_sums_and_products_have_equal_forms(a: IntExpr, b: IntExpr, c: IntExpr) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a * b == b * a
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert (a + b) - b == a
    assert prod((a, b, c)) == c * b * a


@given(forms, forms)
def test_a_product_is_divided_by_its_factors(lhs: IntExpr, rhs: IntExpr) -> None:
    assert exact_quotient(lhs * rhs, rhs) == (None if rhs == 0 else lhs)


@given(forms, forms)
def test_a_quotient_times_the_divisor_is_the_dividend(lhs: IntExpr, rhs: IntExpr) -> None:
    found = exact_quotient(lhs, rhs)
    assert found is None or found * rhs == lhs


@given(forms, forms)
def test_a_common_factor_divides_both(lhs: IntExpr, rhs: IntExpr) -> None:
    found = common_factor(lhs, rhs)
    for each in (lhs, rhs):
        assert found == each == 0 or exact_quotient(each, found) is not None


@given(forms, st.integers(min_value=1, max_value=7), numbers)
def test_quotients_round_as_those_of_numbers(
    form: IntExpr, parts: int, known: Mapping[str, int]
) -> None:
    size = evaluate(form, known)
    assert evaluate(ceildiv(form, parts), known) == -(-size // parts)
    assert ceildiv(form * parts, parts) == form


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (1 + B, "$batch + 1"),
        (L * B + B * 2 - B, "$batch * $length + $batch"),
        ((B + 1) * (B - 1), "$batch * $batch + -1"),
        (ceildiv(B * 4, 2), "$batch * 2"),
        (ceildiv(B * 4, 8), "($batch + 1) // 2"),
        ((B * 5 + 7) // 4, "$batch + ($batch + 3) // 4 + 1"),
        (B * L // L, "$batch"),
        (B // L, "$batch // $length"),
        (maximum(B, 1) * 2, "max($batch, 1) * 2"),
        (Coord("tp") * B + B, "$batch * tp + $batch"),
        (B - B, "0"),
    ],
)
def test_what_forms_look_like(expr: IntExpr, text: str) -> None:
    assert str(expr) == text
    assert parse(text, {"batch": B, "length": L}) == expr


def test_decisions_are_made_for_planned_sizes_on_the_first_rank() -> None:
    expr = B * L + Coord("tp")
    assert planned(expr) == 128
    assert evaluate(expr, FromFirst({"$batch": 2, "tp": 3})) == 35
    assert sizes_of(expr) == {B, L}


def test_sizes_that_are_not_known_are_errors() -> None:
    with pytest.raises(KeyError, match=r"\$batch"):
        evaluate(B + 1, {"tp": 0, "batch": 3})
    with pytest.raises(ValueError, match="expected an open size that is declared at position 4"):
        parse("1 + $batch")
