"""Splits: which mesh axes split which of several named dimensions, and how two such wishes join.

The dimensions are either the factors of an op (by name) or the dimensions of a tensor (by number),
so the same algebra serves ops and values. Splits are interned by a `SplitTable`: equal ones are the
same object, which makes them cheap keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from autopar.ir.layout import DimLayout, SubDim, dim_axes, factorize_dim, normalize_dim
from autopar.ir.mesh import ProcessMesh

Key = str | int
"""A factor's name or a dimension's number."""

Place = tuple[Key, DimLayout]
"""Where one axis splits: the dimension, and its layout if this axis were the only one."""


class Splits:
    """An immutable assignment of mesh axes to dimensions.

    Attributes:
        items: The dimensions that are split, with their layouts.
        places: The place of each axis.
    """

    __slots__ = ("items", "merges", "places", "without_axes")

    items: Mapping[Key, DimLayout]
    places: Mapping[str, Place]
    merges: dict[tuple[str, Splits], Splits | None]
    without_axes: dict[str, Splits]

    def __init__(self, items: Mapping[Key, DimLayout], places: Mapping[str, Place]) -> None:
        self.items = items
        self.places = places
        self.merges = {}
        self.without_axes = {}


class SplitTable:
    """Makes splits over one mesh, each only once.

    Args:
        mesh: The mesh whose axes split.
    """

    def __init__(self, mesh: ProcessMesh) -> None:
        self.mesh = mesh
        self._known: dict[frozenset[tuple[Key, DimLayout]], Splits] = {}
        self._restricted: dict[tuple[DimLayout, tuple[str, ...]], DimLayout] = {}
        self.none = self.of({})

    def of(self, items: Mapping[Key, DimLayout]) -> Splits:
        """Returns the splits with these layouts; dimensions that aren't split are left out."""
        split = {key: dim for key, dim in items.items() if any(sub.axes for sub in dim)}
        found = self._known.get(frozenset(split.items()))
        if found is None:
            places: dict[str, Place] = {}
            for key, dim in split.items():
                for axis in dim_axes(dim):
                    places[axis] = (key, self.restrict(dim, (axis,)))
            found = self._known[frozenset(split.items())] = Splits(split, places)
        return found

    def restrict(self, dim: DimLayout, axes: Iterable[str]) -> DimLayout:
        """Returns a dimension's layout with only some of its axes left."""
        key = (dim, tuple(axes))
        found = self._restricted.get(key)
        if found is None:
            kept = tuple(SubDim(s.size, tuple(a for a in s.axes if a in key[1])) for s in dim)
            found = self._restricted[key] = normalize_dim(kept, self.mesh)
        return found

    def without(self, splits: Splits, axis: str) -> Splits:
        """Returns the splits without an axis."""
        if axis not in splits.places:
            return splits
        found = splits.without_axes.get(axis)
        if found is None:
            key = splits.places[axis][0]
            dim = splits.items[key]
            rest = [other for other in dim_axes(dim) if other != axis]
            found = self.of({**splits.items, key: self.restrict(dim, rest)})
            splits.without_axes[axis] = found
        return found

    def merged(self, splits: Splits, axis: str, source: Splits) -> Splits | None:
        """Returns the splits with an axis placed as `source` has it.

        Where other axes split the same dimension, their order is that of `source` if it agrees
        with `splits` about them, else that of the mesh.

        Args:
            splits: Must not have the axis.
            axis: The axis.
            source: Must have the axis.

        Returns:
            None if the axis doesn't fit there.
        """
        key = (axis, source)
        if key not in splits.merges:
            splits.merges[key] = self._merged(splits, axis, source)
        return splits.merges[key]

    def _merged(self, splits: Splits, axis: str, source: Splits) -> Splits | None:
        at, alone = source.places[axis]
        current = splits.items.get(at)
        if current is None:
            return self.of({**splits.items, at: alone})
        settled = dim_axes(current)
        joint = self.restrict(source.items[at], (*settled, axis))
        if self.restrict(joint, settled) == current:
            return self.of({**splits.items, at: joint})
        composed = self.compose(current, alone)
        return self.of({**splits.items, at: composed}) if composed is not None else None

    def compose(self, one: DimLayout, other: DimLayout) -> DimLayout | None:
        """Returns a dimension split by the axes of both layouts, or None if they don't align."""
        sizes = _common_cuts(one, other)
        if sizes is None:
            return None
        left, right = (factorize_dim(dim, sizes, self.mesh) for dim in (one, other))
        if left is None or right is None:
            return None
        joined: list[SubDim] = []
        for first, second in zip(left, right, strict=True):
            if len(first) != 1 or len(second) != 1:
                return None
            axes = first[0].axes + second[0].axes
            joined.append(SubDim(first[0].size, tuple(sorted(axes, key=self.mesh.axis_index))))
        return normalize_dim(tuple(joined), self.mesh)


def _common_cuts(one: DimLayout, other: DimLayout) -> list[int] | None:
    """Returns the sizes of the coarsest sub-dimensions that refine both layouts."""
    strides = {1}
    for dim in (one, other):
        stride = 1
        for sub in reversed(dim):
            stride *= sub.size
            strides.add(stride)
    ordered = sorted(strides)
    sizes: list[int] = []
    for minor, major in pairwise(ordered):
        if not minor or major % minor:
            return None
        sizes.append(major // minor)
    return sizes[::-1] or [1]
