"""Rank expressions: folding keeps the value, printing keeps the expression, parsing explains."""

from __future__ import annotations

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.expr.expression import (
    Binary,
    Coord,
    IntExpr,
    add,
    axes_of,
    evaluate,
    floordiv,
    maximum,
    minimum,
    multiply,
    sizes_of,
)
from autopar.ir.expr.parse import parse, parse_prefix
from tests.ir import strategies

TP, DP = Coord("tp"), Coord("dp")
FOLDING = {"+": add, "*": multiply, "//": floordiv, "min": minimum, "max": maximum}

OPEN = {size.name: size for size in strategies.OPEN}

exprs = strategies.exprs(("tp", "dp"), strategies.OPEN)
coords = st.fixed_dictionaries(
    {name: st.integers(min_value=0, max_value=6) for name in ("tp", "dp", *map(str, OPEN.values()))}
)


@given(exprs)
def test_an_expression_comes_back_as_it_was(expr: IntExpr) -> None:
    assert repr(parse(str(expr), OPEN)) == repr(expr)


@given(st.sampled_from(sorted(FOLDING)), exprs, exprs, coords)
def test_folding_keeps_the_value(op: str, lhs: IntExpr, rhs: IntExpr, at: dict[str, int]) -> None:
    def outcome(expr: IntExpr) -> int | str:
        try:
            return evaluate(expr, at)
        except ZeroDivisionError:
            return "division by zero"

    plain = Binary(op, lhs, rhs)
    if outcome(plain) != "division by zero":
        assert outcome(FOLDING[op](lhs, rhs)) == outcome(plain)


@given(exprs, coords)
def test_only_the_axes_and_sizes_of_an_expression_matter(expr: IntExpr, at: dict[str, int]) -> None:
    used = {*axes_of(expr), *map(str, sizes_of(expr))}
    try:
        value = evaluate(expr, at)
    except ZeroDivisionError:
        return
    others = {axis: coord if axis in used else coord + 1 for axis, coord in at.items()}
    assert evaluate(expr, others) == value


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (maximum(0, minimum(3, 8 - 3 * TP)), "max(0, min(3, tp * -3 + 8))"),
        ((TP + 1) * 2, "tp * 2 + 2"),
        (1 + TP + 2, "tp + 3"),
        (TP * 2 * 3, "tp * 6"),
        (TP * 0, "0"),
        (TP * 1 + 0, "tp"),
        (TP // 1, "tp"),
        ((TP + DP) // 2, "(tp + dp) // 2"),
        (TP - DP, "tp + dp * -1"),
        (3 - TP, "tp * -1 + 3"),
        (minimum(TP, TP), "tp"),
        (maximum(2, 3), "3"),
    ],
)
def test_what_expressions_look_like(expr: IntExpr, text: str) -> None:
    assert str(expr) == text


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("8 - 3 * tp", Binary("+", Binary("*", Binary("*", 3, TP), -1), 8)),
        ("-tp", Binary("*", TP, -1)),
        ("- 4", -4),
        ("min(tp, 2, dp)", Binary("min", Binary("min", TP, 2), DP)),
        ("  ( tp )  ", TP),
        ("tp // 2 * 3", Binary("*", Binary("//", TP, 2), 3)),
    ],
)
def test_what_people_write(text: str, expr: IntExpr) -> None:
    assert parse(text) == expr


@pytest.mark.parametrize("axis", [*keyword.kwlist, "ﬁ", "été"])
def test_any_identifier_may_be_an_axis(axis: str) -> None:
    assert parse(f"{axis} * 2") == Binary("*", Coord(axis), 2)


def test_the_longest_prefix_is_parsed() -> None:
    assert parse_prefix("x[tp * 2 + 1; 3]", 2) == (TP * 2 + 1, 12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"expected a number, a mesh axis, min, max or '\(' at position 0"),
        ("tp +", r"expected a number, a mesh axis, min, max or '\(' at position 4"),
        ("tp 2", "expected an operator or the end at position 3"),
        ("(tp", r"expected '\)' at position 3"),
        ("min(tp)", "expected ',' at position 6"),
        ("min tp", r"expected '\(' at position 4"),
        ("tp / 2", "expected an operator or the end at position 3"),
        ("f(tp)", "expected an operator or the end at position 1"),
        ("__import__('os')", "expected an operator or the end"),
        ("(" * 101 + "1" + ")" * 101, "expected at most 100 levels of nesting"),
    ],
)
def test_errors_name_the_position(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_an_unknown_coordinate_is_an_error() -> None:
    with pytest.raises(KeyError):
        evaluate(TP + 1, {"dp": 0})
