"""Where a part of a mesh is: the axes at which it is fixed, at one index or at several."""

from __future__ import annotations

import re
from collections.abc import Mapping

Index = int | tuple[int, ...] | range
"""At which index of an axis a part of a mesh is; of a box several, in increasing order.

On a box all of these hold the same. A `range` is a run: the axis, from one index to another, is one
of the part's own, along which tensors may be split.
"""

Fixed = tuple[tuple[str, Index], ...]
"""The axes at which a part of a mesh is fixed, with where it is."""

_TEXT = re.compile(r"(\d+)\.\.(\d+)|\d+(?:\+\d+)*")


def indices_of(index: Index) -> tuple[int, ...]:
    """Returns the indices of an axis at which a part of a mesh is."""
    return (index,) if isinstance(index, int) else tuple(index)


def in_order(fixed: Fixed) -> tuple[tuple[str, tuple[int, ...], bool], ...]:
    """Returns what parts of a mesh are sorted by."""
    return tuple((axis, indices_of(index), isinstance(index, range)) for axis, index in fixed)


def index_text(index: Index) -> str:
    """Returns where along an axis a part of a mesh is: `1`, `0+2`, or `0..2` for a run."""
    if isinstance(index, range):
        return f"{index[0]}..{index[-1]}"
    return "+".join(map(str, indices_of(index)))


def index_of_text(text: str) -> Index | None:
    """Returns what `index_text` makes such a text of; None if it is none."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    if found[1]:
        return run_of(int(found[1]), int(found[2]) + 1) if int(found[1]) <= int(found[2]) else None
    indices = tuple(sorted({int(each) for each in text.split("+")}))
    return indices if len(indices) > 1 else indices[0]


def run_of(start: int, stop: int) -> int | range:
    """Returns the indices from one to another, this one excluded, as a run; of one, the index."""
    return range(start, stop) if stop - start > 1 else start


def is_within(index: Index, other: Index) -> bool:
    """Whether all indices of a part of a mesh are those of another one, too."""
    return set(indices_of(index)) <= set(indices_of(other))


def holds(fixed: Fixed, coords: Mapping[str, int]) -> bool:
    """Whether a process with these coordinates is on a part of the mesh."""
    return all(coords[axis] in indices_of(index) for axis, index in fixed)
