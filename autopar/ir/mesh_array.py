"""The array of process ids that a mesh is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopar.base.errors import AnnotationError


def compact(ids: Sequence[int]) -> range | tuple[int, ...]:
    """Returns ids as a `range` where they count up by one, else as a tuple."""
    run = range(ids[0], ids[0] + len(ids))
    return run if all(a == b for a, b in zip(run, ids, strict=True)) else tuple(ids)


def flat(mesh: Any) -> tuple[tuple[int, ...], list[int]]:
    """Returns the shape and the process ids of nested lists or an array.

    Raises:
        AnnotationError: If it is ragged or empty, or what it holds are no process ids.
    """
    nested = mesh.tolist() if hasattr(mesh, "tolist") else mesh
    shape: list[int] = []
    level: list[Any] = [nested]
    while isinstance(level[0], (list, tuple)):
        lengths = {len(row) if isinstance(row, (list, tuple)) else -1 for row in level}
        if len(lengths) != 1 or 0 in lengths:
            raise AnnotationError("mesh must be a rectangular, non-empty array of process ids")
        shape.append(lengths.pop())
        level = [item for row in level for item in row]
    if not shape or not all(type(item) is int and item >= 0 for item in level):
        raise AnnotationError("mesh must be a nested list or array of process ids >= 0")
    if len(set(level)) != len(level):
        raise AnnotationError("mesh names a process more than once")
    return tuple(shape), level
