"""Where a part of a mesh is: the axes at which it is fixed, at one index or at several."""

from __future__ import annotations

from collections.abc import Mapping

Index = int | tuple[int, ...]
"""At which index of an axis a part of a mesh is; of a box several, in increasing order."""

Fixed = tuple[tuple[str, Index], ...]
"""The axes at which a part of a mesh is fixed, with where it is."""


def indices_of(index: Index) -> tuple[int, ...]:
    """Returns the indices of an axis at which a part of a mesh is."""
    return index if isinstance(index, tuple) else (index,)


def in_order(fixed: Fixed) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Returns what parts of a mesh are sorted by."""
    return tuple((axis, indices_of(index)) for axis, index in fixed)


def index_text(index: Index) -> str:
    """Returns where along an axis a part of a mesh is: `1`, or `0+2`."""
    return "+".join(map(str, indices_of(index)))


def holds(fixed: Fixed, coords: Mapping[str, int]) -> bool:
    """Whether a process with these coordinates is on a part of the mesh."""
    return all(coords[axis] in indices_of(index) for axis, index in fixed)
