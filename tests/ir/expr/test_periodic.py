"""What is found by trying the sizes of one period, or multiples, is so for all sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.expr.expression import IntExpr, Size, evaluate, substitute
from autopar.ir.expr.growing import is_growing, least_for, most_for
from autopar.ir.expr.multiples import equal_for_multiples, in_steps
from autopar.ir.expr.periodic import least_value

H = Size("h", 0, 500)
NUMBERS = st.integers(-7, 7)


def expressions() -> st.SearchStrategy[IntExpr]:
    """Sums, multiples and quotients of one size."""

    def grown(inner: st.SearchStrategy[IntExpr]) -> st.SearchStrategy[IntExpr]:
        return st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
            st.tuples(inner, NUMBERS).map(lambda pair: pair[0] * pair[1] + pair[1]),
            st.tuples(inner, st.integers(1, 6)).map(lambda pair: pair[0] // pair[1]),
        )

    return st.recursive(st.just(H), grown, max_leaves=5)


def values(expr: IntExpr, size: Size = H) -> list[int]:
    admitted = filter(size.admits, range(size.least, size.most + 1))
    return [evaluate(expr, {str(size): number}) for number in admitted]


@given(expressions())
def test_the_least_value_is_that_of_all_sizes(expr: IntExpr) -> None:
    found = least_value(expr)
    assert found is None or found == min(values(expr))


@given(expressions(), st.integers(-40, 40))
def test_what_grows_is_large_enough_from_one_size_on(expr: IntExpr, number: int) -> None:
    all_values = values(expr)
    assert not is_growing(expr) or all_values == sorted(all_values)
    at_least, at_most = least_for(expr, number), most_for(expr, number)
    if at_least is not None:
        assert all_values[at_least[1]] >= number
        assert at_least[1] == 0 or all_values[at_least[1] - 1] < number
    if at_most is not None:
        assert all_values[at_most[1]] <= number < all_values[at_most[1] + 1]


@given(expressions(), st.sampled_from((2, 3, 4, 32)))
def test_expressions_of_multiples_are_the_same_numbers(expr: IntExpr, step: int) -> None:
    in_parts = in_steps(H, step)
    assert in_parts is not None
    renewed = substitute(expr, {"$h": in_parts})
    wanted = [evaluate(expr, {"$h": number}) for number in range(0, 501, step)]
    assert values(renewed, in_parts) == wanted


@pytest.mark.parametrize(
    ("one", "other", "step"),
    [
        ((H + 15) // 16, (H + 31) // 32 * 2, 32),
        (H // 2 * 2, H, 2),
        ((H - 1) // 4 + 1, (H + 3) // 4, 1),
        (H // 3 * 3, (H + 1) // 2 * 2, 6),
        (H // 2 + 1, (H + 1) // 2, None),
        (Size("w") * H, Size("w") * (H // 4) * 4, 4),
    ],
)
def test_multiples_make_expressions_equal(one: IntExpr, other: IntExpr, step: int | None) -> None:
    found = equal_for_multiples(one, other)
    assert (found and found.step) == step
