"""Exchanges of open sizes: what is said of them holds at every size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from autopar.ir.expr.at_rank import args_at
from autopar.ir.expr.expression import IntExpr, Size, evaluate, is_open
from autopar.ir.rules.redistribution import Exchange, Redistribution, exchange
from autopar.ir.rules.window import Window

NUMBERS = (0, 1, 2, 3, 5, 7, 12, 13, 24)


def exchanges() -> Iterator[tuple[Size, Exchange, int]]:
    """Yields exchanges of many kinds, with their open size and the number of members."""
    some, even = Size("n", planned=12), Size("n", planned=12, step=12)
    for size, members in itertools.product((some, even), (2, 3, 4)):
        for stride, start, length in itertools.product((1, 2, 3), (-1, 0, 1), (1, 3)):
            for fill in (0, "edge", "none"):
                window = Window("y", stride, start, length, fill)
                yield size, exchange(size, size // stride, members, window), members
        yield size, exchange(size, size, members, Window("y", -1, size - 1)), members


def at(way: Exchange, size: Size, number: int) -> Redistribution:
    known = {str(size): number}
    return Redistribution.of_args(dict(args_at(way.args, known)))


def test_at_a_size_it_is_the_redistribution_of_that_size() -> None:
    for size, way, members in exchanges():
        assert Exchange.of_args(dict(way.args)).args == way.args
        for number in filter(size.admits, NUMBERS):
            found, known = at(way, size, number), {str(size): number}
            assert found == Redistribution.over(number, found.outputs, members, found.window), (
                way,
                number,
            )
            for member in range(members):
                low, length = (evaluate(each, known) for each in way.extent(member, members))
                first, last = found.interval(member)
                if found.window.fill == "none":
                    first, last = (min(max(end, 0), number) for end in (first, last))
                assert length == last - first
                assert not length or low == first


@pytest.mark.parametrize("name", ["is_identity", "is_local", "is_within", "is_within_block"])
def test_what_is_so_is_so_at_every_size(name: str) -> None:
    proven = 0
    for size, way, _ in exchanges():
        if is_open(way.size) and getattr(way, name):
            proven += 1
            for number in filter(size.admits, NUMBERS):
                assert getattr(at(way, size, number), name), (way, number)
    assert proven


def test_a_pool_of_a_multiple_needs_nothing_from_others() -> None:
    rows = Size("n", 8, planned=16, step=8)
    halves: IntExpr = rows // 2
    assert exchange(rows, halves, 4, Window("y", 2, 0, 2)).is_identity
    assert exchange(rows, halves, 4, Window("y", 2, 0, 1)).is_within_block
    assert not exchange(rows, halves, 3, Window("y", 2, 0, 1)).is_local
    assert not exchange(rows, halves, 4, Window("y", 2, 0, 3)).is_local
