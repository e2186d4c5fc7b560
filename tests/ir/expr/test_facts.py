"""Facts about expressions: what is said of all sizes and ranks holds of each."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.expr.expression import Coord, IntExpr, Size, evaluate, maximum, minimum
from autopar.ir.expr.facts import (
    Bounds,
    bounds,
    can_exceed,
    divides,
    is_at_least,
    larger,
    may_be,
    smaller,
)
from autopar.ir.expr.presence import presence
from tests.ir import strategies

BATCH, LENGTH, PAST = Size("batch"), Size("length", 1, 64, 16), Size("past")
TP = Coord("tp")

exprs = strategies.exprs(("tp",), strategies.OPEN)
small = st.integers(min_value=-3, max_value=9)
places = st.fixed_dictionaries(
    {
        "tp": st.integers(min_value=0, max_value=9),
        **{str(size): st.integers(size.least, min(size.most, 1 << 20)) for size in strategies.OPEN},
    }
)


def value(expr: IntExpr, place: Mapping[str, int]) -> int | None:
    """The value of an expression; None if it divides by 0 there."""
    try:
        return evaluate(expr, place)
    except ZeroDivisionError:
        return None


@given(exprs, places)
def test_bounds_hold(expr: IntExpr, place: Mapping[str, int]) -> None:
    least, most = bounds(expr)
    found = value(expr, place)
    assert found is None or least <= found <= most


@given(exprs, small, places)
def test_what_is_said_holds(expr: IntExpr, number: int, place: Mapping[str, int]) -> None:
    found = value(expr, place)
    if found is None:
        return
    assert found >= number or not is_at_least(expr, number)
    assert found <= number or can_exceed(expr, number)
    assert found != number or may_be(expr, number)
    assert number <= 0 or found % number == 0 or not divides(number, expr)


@given(exprs, exprs, places)
def test_what_is_never_smaller_is_not(
    one: IntExpr, other: IntExpr, place: Mapping[str, int]
) -> None:
    found, least = value(one, place), value(other, place)
    if found is not None and least is not None and is_at_least(one, other):
        assert found >= least


@given(exprs, places)
def test_what_is_there_is_one(expr: IntExpr, place: Mapping[str, int]) -> None:
    found, there = value(expr, place), presence(expr)
    assert found is None or there is None or evaluate(there, place) == min(1, found)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (minimum(1, BATCH) + BATCH, "min(1, $batch)"),
        (BATCH * BATCH * 3 + BATCH * PAST, "min(1, $batch)"),
        (BATCH * PAST + PAST * LENGTH * 2, "min(1, $past)"),
        (BATCH + PAST * minimum(PAST, 7), "min(1, $batch + $past)"),
        (maximum(BATCH, minimum(PAST, BATCH)), "min(1, $batch)"),
        (maximum(0, BATCH - 3) + PAST // 2, "min(1, $past // 2 + max(0, $batch + -3))"),
        (BATCH + LENGTH, "1"),
        (BATCH - LENGTH, "None"),
        (BATCH // PAST, "None"),
    ],
)
def test_what_is_there_looks_the_same(expr: IntExpr, expected: str) -> None:
    assert str(presence(expr)) == expected
    if expected != "None":
        assert str(smaller(1, expr)) == str(smaller(expr, 1)) == expected


@given(exprs, exprs, places)
def test_extremes_are_those_of_numbers(
    one: IntExpr, other: IntExpr, place: Mapping[str, int]
) -> None:
    left, right = value(one, place), value(other, place)
    if left is not None and right is not None:
        assert evaluate(smaller(one, other), place) == min(left, right)
        assert evaluate(larger(one, other), place) == max(left, right)


@given(exprs, places)
def test_what_is_there_but_for_one(expr: IntExpr, place: Mapping[str, int]) -> None:
    found = value(expr, place)
    assert found is None or evaluate(larger(0, expr - 1), place) == max(0, found - 1)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (BATCH + minimum(1, BATCH) - 1, "$batch"),
        (BATCH * PAST + minimum(1, BATCH * PAST) - 1, "$batch * $past"),
        (BATCH - 1, "max(0, $batch + -1)"),
        (LENGTH - 1, "$length + -1"),
    ],
)
def test_all_but_one_is_left(expr: IntExpr, expected: str) -> None:
    assert str(larger(0, expr)) == expected


@pytest.mark.parametrize("size", [BATCH, LENGTH - 1, BATCH * LENGTH])
def test_what_a_division_leaves_is_not_less_than_nothing(size: IntExpr) -> None:
    assert is_at_least(size - size // 4 * 4, 0)
    assert is_at_least(size + 1 - size // 4 * 4, 1)
    assert not is_at_least(size - size // 4 * 4, 1)
    assert not is_at_least(size - size // 4 * 5, 0)


def test_a_multiple_is_as_large_as_its_quotient_times_that() -> None:
    size = Size("width", 8, 128, 64, 8)
    assert is_at_least(size // 8 * 8, size)
    assert not is_at_least(size // 8 * -8, 1)
    assert not is_at_least(size * -1, 1)


@given(st.integers(), st.integers())
def test_of_numbers_all_is_known(number: int, other: int) -> None:
    assert bounds(number) == (number, number)
    assert is_at_least(number, other) == (number >= other)
    assert can_exceed(number, other) == (number > other)
    assert may_be(number, other) == (number == other)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (LENGTH, (1, 64)),
        (LENGTH * 2 + 1, (3, 129)),
        (3 - LENGTH, (-61, 2)),
        (LENGTH // 2, (0, 32)),
        (minimum(LENGTH, 8), (1, 8)),
        (maximum(LENGTH, TP), (1, math.inf)),
        (LENGTH - TP, (-math.inf, 64)),
        (LENGTH // TP, (-math.inf, math.inf)),
        (LENGTH // (TP + 1), (0, 64)),
    ],
)
def test_bounds(expr: IntExpr, expected: Bounds) -> None:
    assert bounds(expr) == expected


@pytest.mark.parametrize(
    ("divisor", "expr", "expected"),
    [
        (2, BATCH * 4, True),
        (2, BATCH * 4 + 2, True),
        (2, BATCH * 4 + 1, False),
        (2, BATCH, False),
        (2, BATCH * LENGTH * 6 + LENGTH * 2, True),
        (4, BATCH // 2 * 4, True),
        (3, 9, True),
        (3, 8, False),
    ],
)
def test_what_divides_every_value(divisor: int, expr: IntExpr, expected: bool) -> None:
    assert divides(divisor, expr) is expected


def test_sizes_of_the_same_name_are_compared_as_expressions() -> None:
    assert is_at_least(BATCH * 2, BATCH)
    assert is_at_least(BATCH + LENGTH, BATCH + 1)
    assert not is_at_least(BATCH, LENGTH)
    assert is_at_least(maximum(BATCH, 10) - BATCH, 0)
    assert is_at_least(BATCH - minimum(BATCH, LENGTH), 0)
    assert not is_at_least(BATCH - maximum(BATCH, 10), 0)
    assert is_at_least(minimum(BATCH, LENGTH * 2), minimum(BATCH, LENGTH))
    assert is_at_least(maximum(BATCH, LENGTH * 2), maximum(BATCH, LENGTH))
    assert not is_at_least(maximum(BATCH, 10) - BATCH * 2, 0)
    assert not is_at_least(BATCH + 1, BATCH * 2)
