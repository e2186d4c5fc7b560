"""Relations between open sizes: what they say, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from autopar.ir.expr.expression import IntExpr, Size, add, maximum, minimum, multiply
from autopar.ir.expr.given import Given
from autopar.ir.expr.relation import Relation

PAST, LENGTH = Size("past", 0, 70, 4), Size("length", 0, 70, 4)
FITS = Relation(add(PAST, LENGTH), "<=", 64)


@pytest.mark.parametrize(
    ("relation", "told"),
    [
        (FITS, "length + past <= 64"),
        (Relation(multiply(LENGTH // 4, 4), "==", LENGTH), "length is a multiple of 4"),
        (Relation(LENGTH, "==", PAST), "length == past"),
    ],
)
def test_relations_are_told(relation: Relation, told: str) -> None:
    assert relation.told == told


def points() -> Iterator[dict[str, int]]:
    for past, length in product(range(0, 71, 5), repeat=2):
        yield {"$past": past, "$length": length}


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        (minimum(add(PAST, LENGTH), 64), add(PAST, LENGTH)),
        (minimum(PAST, 64), PAST),
        (maximum(0, add(minimum(64, add(PAST, LENGTH)), multiply(minimum(64, PAST), -1))), LENGTH),
        (minimum(add(PAST, LENGTH), 63), minimum(add(PAST, LENGTH), 63)),
    ],
)
def test_what_is_given_decides_what_is_smaller(expr: IntExpr, simple: IntExpr) -> None:
    found = Given([FITS]).simplified(expr)
    assert found == simple
    for sizes in filter(FITS.holds, points()):
        one, other = (Relation(side, "==", 0).at(sizes) for side in (expr, found))
        assert one == other


def test_nothing_follows_from_nothing() -> None:
    assert not Given().is_at_least(64, add(PAST, LENGTH))
    assert Given([FITS]).is_at_least(64, PAST)
    assert not Given([FITS]).is_at_least(63, PAST)


def test_an_equality_is_given_both_ways() -> None:
    given = Given([Relation(LENGTH, "==", PAST)])
    assert given.is_equal(add(LENGTH, 1), add(PAST, 1))
    assert not given.is_equal(LENGTH, add(PAST, 1))
