"""Permutations: other axes in the places of these, so that every process sends its piece to one.

If the blocks of a layout are as many and of the same form as those of another, though other axes
number them, each process of the second holds what some process of the first does. S0S1 -> S1S0 is
such a pair, S0(x) -> S0(y) over axes of one size is, and so is a sum that is pending over another
axis: which process keeps which addend doesn't matter, as long as each addend is kept equally often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from autopar.ir.mesh import ProcessMesh

Axes = tuple[str, ...]
Runs = Sequence[Axes]
"""The axes of each sub-dimension, major to minor, and behind them those that are pending."""


class Permutation(NamedTuple):
    """Who sends to whom in a group.

    Attributes:
        axes: Those of the group, in the order in which they number what its members hold.
        sizes: Their sizes.
        order: Their positions in the order in which they number what members get: the member with
            coordinates c gets what the one with coordinates `c[order]` holds.
    """

    axes: Axes
    sizes: tuple[int, ...]
    order: tuple[int, ...]


def permutation(before: Runs, after: Runs, mesh: ProcessMesh) -> Permutation:
    """Returns the permutation between two layouts that differ in the axes of their places only."""
    places = [_places(runs, mesh) for runs in (before, after)]
    moving = {
        axis for axis in (*places[0], *places[1]) if places[0].get(axis) != places[1].get(axis)
    }
    old, new = (
        [axis for run in runs for axis in run if axis in moving] for runs in (before, after)
    )
    held = (*old, *(axis for axis in mesh.dim_names if axis in moving and axis not in old))
    wanted = (*new, *(axis for axis in mesh.dim_names if axis in moving and axis not in new))
    sizes = tuple(mesh.axis_size(axis) for axis in held)
    return Permutation(held, sizes, tuple(held.index(axis) for axis in wanted))


def alternatives(runs: Runs, free: Axes, mesh: ProcessMesh) -> Iterator[tuple[Axes, ...]]:
    """Yields the other ways to fill places with axes, each with as many processes as it has.

    These are some of the `free` axes, which are given in the order of the mesh.

    Which addends of a pending reduction a process holds doesn't matter, so the axes of the last
    place stay in the order of the mesh.
    """
    counts = [mesh.axes_size(run) for run in runs]
    given = tuple(runs)
    for filled in _filled(counts, free, mesh):
        if filled != given and all(free.index(a) < free.index(b) for a, b in pairwise(filled[-1])):
            yield filled


def _filled(counts: Sequence[int], free: Axes, mesh: ProcessMesh) -> Iterator[tuple[Axes, ...]]:
    if not counts:
        yield ()
        return
    for run in _runs(counts[0], free, mesh):
        left = tuple(axis for axis in free if axis not in run)
        for rest in _filled(counts[1:], left, mesh):
            yield (run, *rest)


def _runs(count: int, free: Axes, mesh: ProcessMesh) -> Iterator[Axes]:
    """Yields the ordered choices of free axes with `count` processes together."""
    if count == 1:
        yield ()
        return
    for axis in free:
        size = mesh.axis_size(axis)
        if count % size == 0:
            left = tuple(other for other in free if other != axis)
            for rest in _runs(count // size, left, mesh):
                yield (axis, *rest)


def _places(runs: Runs, mesh: ProcessMesh) -> dict[str, tuple[int, int]]:
    """Returns per axis the run that it is in and the number of blocks minor to its own."""
    places: dict[str, tuple[int, int]] = {}
    for index, run in enumerate(runs):
        minor = 1
        for axis in reversed(run):
            places[axis] = (index, minor)
            minor *= mesh.axis_size(axis)
    return places
