"""Views of any two shapes with as many elements: every common factor is found, and right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.ir.ops.shape.view import refine
from tests.ops.sample import f, s
from tests.ops.split_run_combine import check_splits

PRIMES = st.lists(st.sampled_from([2, 2, 3, 5]), min_size=1, max_size=4)


@st.composite
def shape_pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draws two shapes of equally many elements, with dimensions of size 1 among them."""
    primes = draw(PRIMES)
    return draw(_grouped(primes)), draw(_grouped(draw(st.permutations(primes))))


@st.composite
def _grouped(draw: st.DrawFn, primes: list[int]) -> list[int]:
    cuts = draw(st.lists(st.integers(0, len(primes)), max_size=3).map(sorted))
    ends = zip([0, *cuts], [*cuts, len(primes)], strict=True)
    return [math.prod(primes[start:end]) for start, end in ends]


@settings(max_examples=60)
@given(shape_pairs())
def test_any_view_splits_right(shapes: tuple[list[int], list[int]]) -> None:
    source, target = shapes
    sample = s("view", f(*source), target)
    assert sample.rule is not None
    check_splits(sample, sample.rule)


@given(PRIMES, st.data())
def test_merged_dimensions_all_split(source: list[int], data: st.DataObject) -> None:
    target = data.draw(_grouped(source))
    assert refine(source, target).whole == []
    assert refine(target, source).whole == []


@given(shape_pairs())
def test_common_ends_split_where_boundaries_do_not_align(
    shapes: tuple[list[int], list[int]],
) -> None:
    source, target = ([size for size in shape if size != 1] for shape in shapes)
    found = refine(source, target)
    splittable = math.prod(n for name, n in found.sizes.items() if name not in found.whole)
    assert splittable % math.gcd(source[0], target[0]) == 0
    assert splittable % math.gcd(source[-1], target[-1]) == 0


@settings(max_examples=40)
@given(shape_pairs(), shape_pairs())
def test_views_of_nothing_split_around_the_empty_dimension(
    before: tuple[list[int], list[int]], behind: tuple[list[int], list[int]]
) -> None:
    source, target = ([*one, 0, *other] for one, other in zip(before, behind, strict=True))
    sample = s("view", f(*source), target)
    assert sample.rule is not None
    check_splits(sample, sample.rule)
    assert len(refine(source, target).whole) == len(refine(*before).whole) + len(
        refine(*behind).whole
    )


def test_views_between_several_empty_dimensions() -> None:
    assert refine([0, 2, 3], [0, 5]).whole
    for source, target in (([0, 2, 0], [0]), ([0], [3, 0, 2, 0]), ([2, 0], [0, 0])):
        found = refine(source, target)
        assert all(len(found.source[at]) for at, size in enumerate(source) if size != 1)
        assert all(len(found.target[at]) for at, size in enumerate(target) if size != 1)


def shapes_of(count: int, rank: int = 3) -> Iterator[tuple[int, ...]]:
    """Yields the shapes of so many elements, without dimensions of size 1."""
    if count == 1:
        yield ()
    for size in range(2, count + 1) if rank else ():
        if count % size == 0:
            yield from ((size, *rest) for rest in shapes_of(count // size, rank - 1))


def blocks(shape: Sequence[int], dim: int, parts: int) -> list[list[int]]:
    """Returns the elements, in order, of each block of a dimension."""
    elements = torch.arange(math.prod(shape)).reshape(tuple(shape))
    return [part.flatten().tolist() for part in elements.split(-(-shape[dim] // parts), dim)]


@pytest.mark.parametrize("count", [12, 24, 36])
def test_no_view_of_blocks_is_missed(count: int) -> None:
    """Wherever blocks of a dimension are blocks of one of the other shape, a factor says so."""
    shapes = list(shapes_of(count))
    for source, target in itertools.product(shapes, shapes):
        found = refine(source, target)
        for at, to in itertools.product(range(len(source)), range(len(target))):
            if any(blocks(source, at, n) == blocks(target, to, n) for n in (2, 3)):
                assert found.source[at][0] == found.target[to][0], (source, target, at, to)
                assert found.source[at][0] not in found.whole, (source, target, at, to)
