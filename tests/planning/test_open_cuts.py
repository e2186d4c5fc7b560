"""How iterations share a dimension of any size."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autopar.ir.expr.expression import Size, evaluate
from autopar.ir.expr.facts import is_at_least
from autopar.planning.chunk.cut import Cut

PARTS = (2, 3, 4, 7, 16, 64)
PLANNED = (2, 8, 33, 100)


def blocks(cut: Cut, size: int) -> Sequence[int]:
    """Returns how many elements each iteration has."""
    known = {"$rows": size}
    found = [evaluate(run.block, known) for run in cut.runs for _ in range(run.times)]
    return [*found, evaluate(cut.rest, known)]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("planned", PLANNED)
def test_no_smaller_size_has_larger_parts(planned: int, parts: int) -> None:
    cut = Cut.into(parts, 0, 1, Size("rows", planned=planned))
    most = max(1, planned // parts)
    for size in range(planned + parts):
        found = blocks(cut, size)
        assert sum(found) == size
        assert 0 <= min(found) <= max(found) <= max(most, size // parts)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("planned", PLANNED)
def test_what_has_an_element_less_can_be_cut_alike(planned: int, parts: int) -> None:
    cut = Cut.into(parts, 0, 1, Size("rows", 1, planned=planned)).shorter(1)
    assert is_at_least(cut.rest, 1)
    for size in range(1, planned + parts):
        *whole, rest = blocks(cut, size)
        assert sum(whole) + rest == size
        assert min(whole) >= 0 < rest


def test_multiples_leave_nothing() -> None:
    cut = Cut.into(8, 0, 1, Size("rows", planned=64, step=32))
    assert [(str(run.block), run.times) for run in cut.runs] == [("$rows // 32 * 4", 8)]
    assert cut.rest == 0


@pytest.mark.parametrize(("size", "parts", "expected"), [(13, 4, [4, 4, 4, 1]), (3, 8, [1, 1, 1])])
def test_known_sizes(size: int, parts: int, expected: Sequence[int]) -> None:
    cut = Cut.into(parts, 0, 1, size)
    (run,) = cut.runs
    assert [run.block] * run.times + [cut.rest] * (cut.rest != 0) == expected
    assert cut.parts == len(expected)
