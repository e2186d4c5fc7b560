"""The minimum cut and the ways made of it, against trying everything."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from autopar.partition.recompute.cut import Mix, Problem, ways


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
        transfers=tuple(draw(st.sampled_from([None, 0.5, 1.0, 4.0])) for _ in range(count)),
    )


def saved(problem: Problem, repeated: frozenset[int]) -> list[int]:
    """The values that are read and not made again."""
    read = {*problem.needed, *(value for op in repeated for value in problem.reads[op])}
    return sorted(read - repeated)


def figures(problem: Problem, way: Mix) -> tuple[int, float]:
    """The bytes saved and the seconds of a way."""
    kept = set(saved(problem, way.repeated)) - way.offloaded
    away = sum(problem.transfer(value) or 0.0 for value in way.offloaded)
    return (
        sum(problem.nbytes[value] for value in kept),
        sum(problem.seconds[op] or 0.0 for op in way.repeated) + away,
    )


def subsets(of: list[int]) -> Iterator[frozenset[int]]:
    for picked in product((False, True), repeat=len(of)):
        yield frozenset(each for each, taken in zip(of, picked, strict=True) if taken)


def every_way(problem: Problem) -> Iterator[Mix]:
    free = [op for op, seconds in enumerate(problem.seconds) if seconds is not None]
    for repeated in subsets(free):
        movable = [v for v in saved(problem, repeated) if problem.transfer(v) is not None]
        yield from (Mix(repeated, offloaded) for offloaded in subsets(movable))


@given(problems())
def test_what_is_made_again_or_not_read_doesn_t_leave(problem: Problem) -> None:
    for way in ways(problem):
        assert way.offloaded <= set(saved(problem, way.repeated))
        assert all(problem.transfer(value) is not None for value in way.offloaded)


@given(problems())
def test_the_ends_are_the_best_and_ways_lie_on_the_hull(problem: Problem) -> None:
    found = [figures(problem, way) for way in ways(problem)]
    every = [figures(problem, way) for way in every_way(problem)]
    assert min(nbytes for nbytes, _ in found) == min(nbytes for nbytes, _ in every)
    assert min(seconds for _, seconds in found) == 0
    for price in (0.1, 0.3, 1.0, 3.0):
        best = min(seconds + price * nbytes for nbytes, seconds in every)
        mine = min(seconds + price * nbytes for nbytes, seconds in found)
        assert mine <= best + 1e-6
