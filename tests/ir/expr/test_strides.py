"""Strides of open sizes are compared by what they are, not by what is planned."""

from __future__ import annotations

from itertools import permutations

import pytest

from autopar.ir.expr.expression import IntExpr, Size, multiply
from autopar.ir.expr.strides import is_between, is_within, order

B, L = Size("b", planned=1), Size("l", planned=1)
H = Size("h", 0, 960, 0, 32)


@pytest.mark.parametrize(
    ("inner", "outer", "known"),
    [
        (1, 4, True),
        (4, 3, False),
        (1, B, True),
        (B, L, False),
        (L, multiply(B, L), True),
        (multiply(B, L), L, False),
        (64, L, False),
        (Size("n", 0, 8), 8, True),
        (H // 32, H, True),
    ],
)
def test_what_is_within_what(inner: IntExpr, outer: IntExpr, known: bool) -> None:
    assert is_within(inner, outer) is known


def test_what_is_between() -> None:
    assert is_between(1, L, multiply(B, L))
    assert not is_between(1, B, L)
    assert not is_between(L, L, multiply(B, L))


@pytest.mark.parametrize(
    "chain",
    [
        (2, 6, 12),
        (L, multiply(B, L), multiply(multiply(B, L), 4)),
        (64, multiply(L, 64)),
        (H // 32, H, multiply(H, L)),
    ],
)
def test_a_stride_comes_before_its_multiples(chain: tuple[IntExpr, ...]) -> None:
    for shuffled in permutations(chain):
        assert tuple(sorted(shuffled, key=order)) == chain
