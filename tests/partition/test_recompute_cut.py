"""The minimum cut and the ways made of it, against trying everything."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from autopar.partition.recompute.cut import Problem, Repeated, ways
from autopar.partition.recompute.flow import SINK, SOURCE, Network

COUNT = 6


@st.composite
def networks(draw: st.DrawFn) -> list[tuple[int, int, float]]:
    pairs = st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1), st.integers(1, 9))
    return [(a, b, float(c)) for a, b, c in draw(st.lists(pairs, max_size=14)) if a != b]


def capacity(edges: list[tuple[int, int, float]], sides: tuple[bool, ...]) -> float:
    return sum(size for tail, head, size in edges if not sides[tail] and sides[head])


@given(networks())
def test_no_cut_is_smaller(edges: list[tuple[int, int, float]]) -> None:
    network = Network(COUNT)
    for edge in edges:
        network.add(*edge)
    sides = tuple(network.cut())
    assert not sides[SOURCE]
    assert sides[SINK]
    others = product((False, True), repeat=COUNT - 2)
    assert capacity(edges, sides) == min(capacity(edges, (False, True, *o)) for o in others)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Ops with a result each, which read results of earlier ones."""
    count = draw(st.integers(1, 6))
    reads = [
        tuple(sorted(draw(st.sets(st.integers(0, at - 1), max_size=2)))) if at else ()
        for at in range(count)
    ]
    return Problem(
        seconds=tuple(draw(st.sampled_from([None, 1.0, 2.0, 5.0])) for _ in range(count)),
        reads=tuple(reads),
        made=tuple(range(count)),
        nbytes=tuple(draw(st.integers(0, 6)) for _ in range(count)),
        needed=tuple(sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))),
        bases=(-1,) * count,
    )


def figures(problem: Problem, way: Repeated) -> tuple[int, float]:
    """The bytes saved and the seconds of a way."""
    read = {*problem.needed, *(value for op in way for value in problem.reads[op])}
    return (
        sum(problem.nbytes[value] for value in read if value not in way),
        sum(problem.seconds[op] or 0.0 for op in way),
    )


@given(problems())
def test_the_ends_are_the_best_and_ways_lie_on_the_hull(problem: Problem) -> None:
    found = [figures(problem, way) for way in ways(problem)]
    free = [op for op, seconds in enumerate(problem.seconds) if seconds is not None]
    chosen = product((False, True), repeat=len(free))
    every = [
        figures(problem, frozenset(op for op, taken in zip(free, picked, strict=True) if taken))
        for picked in chosen
    ]
    assert min(nbytes for nbytes, _ in found) == min(nbytes for nbytes, _ in every)
    assert min(seconds for _, seconds in found) == 0
    for price in (0.1, 0.3, 1.0, 3.0):
        best = min(seconds + price * nbytes for nbytes, seconds in every)
        mine = min(seconds + price * nbytes for nbytes, seconds in found)
        assert mine <= best + 1e-6
