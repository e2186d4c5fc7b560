"""Formulas compute what `evaluate` does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.expr.expression import Coord, IntExpr, Size, evaluate, maximum, minimum
from autopar.ir.expr.formula import formula

H, W, DP = Size("h", 0, 500), Size("w", 1), Coord("dp")
NUMBERS = st.integers(0, 40)


def expressions() -> st.SearchStrategy[IntExpr]:
    """Expressions of two sizes and a coordinate, by all operators."""

    def grown(inner: st.SearchStrategy[IntExpr]) -> st.SearchStrategy[IntExpr]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda pair: pair[0] + pair[1]),
            pairs.map(lambda pair: minimum(*pair)),
            pairs.map(lambda pair: maximum(*pair)),
            st.tuples(inner, st.integers(-7, 7)).map(lambda pair: pair[0] * pair[1]),
            st.tuples(inner, st.integers(1, 6)).map(lambda pair: pair[0] // pair[1]),
        )

    return st.recursive(st.sampled_from([H, W, DP, 3]), grown, max_leaves=6)


@given(st.lists(expressions(), max_size=4), NUMBERS, NUMBERS, NUMBERS)
def test_a_formula_computes_what_its_expressions_are(
    exprs: list[IntExpr], h: int, w: int, dp: int
) -> None:
    known = {"$h": h, "$w": w, "dp": dp}
    assert formula(exprs)(known) == tuple(evaluate(expr, known) for expr in exprs)


def test_a_formula_names_what_it_is_not_given() -> None:
    with pytest.raises(KeyError, match="dp"):
        formula([H + DP])({"$h": 1})
