"""Splits: which mesh axes split which of several named dimensions, and how two such splits merge.

The dimensions are either the factors of an op (by name) or the dimensions of a tensor (by number),
so the same algebra serves ops and values. Splits are interned by a `SplitTable`: equal ones are the
same object, which makes them cheap keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from autopar.ir.dims import DimLayout, SubDim, dim_axes, dim_size, factorize_dim, normalize_dim
from autopar.ir.expr.expression import IntExpr, exact_quotient, planned
from autopar.ir.expr.facts import divides
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
        self.none = self.splits_of({})

    def splits_of(self, items: Mapping[Key, DimLayout]) -> Splits:
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
            digits = tuple(digit for sub in dim for digit in self._digits(sub))
            kept = tuple(SubDim(s.size, tuple(a for a in s.axes if a in key[1])) for s in digits)
            found = self._restricted[key] = normalize_dim(kept, self.mesh)
        return found

    def _digits(self, sub: SubDim) -> DimLayout:
        """Returns a sub-dimension with each axis on its own, where it divides evenly.

        So an axis keeps its stride when those beside it are taken away.
        """
        if len(sub.axes) < 2 or not divides(self.mesh.axes_size(sub.axes), sub.size):
            return (sub,)
        sizes = [self.mesh.axis_size(axis) for axis in sub.axes]
        rest = sub.size // math.prod(sizes)
        digits = (SubDim(size, (axis,)) for size, axis in zip(sizes, sub.axes, strict=True))
        return (*digits, SubDim(rest))

    def without(self, splits: Splits, axis: str) -> Splits:
        """Returns the splits without an axis."""
        if axis not in splits.places:
            return splits
        found = splits.without_axes.get(axis)
        if found is None:
            key = splits.places[axis][0]
            dim = splits.items[key]
            rest = [other for other in dim_axes(dim) if other != axis]
            found = self.splits_of({**splits.items, key: self.restrict(dim, rest)})
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
        key, alone = source.places[axis]
        current = splits.items.get(key)
        if current is None:
            return self.splits_of({**splits.items, key: alone})
        settled = dim_axes(current)
        joint = self.restrict(source.items[key], (*settled, axis))
        if self.restrict(joint, settled) == current:
            return self.splits_of({**splits.items, key: joint})
        composed = self.compose(current, alone)
        return self.splits_of({**splits.items, key: composed}) if composed is not None else None

    def nested(
        self, splits: Splits, axis: str, source: Splits, cuts: Mapping[Key, Sequence[IntExpr]]
    ) -> Splits | None:
        """Returns the splits with an axis placed as `source` has it, minor to the axes there.

        Args:
            splits: Must not have the axis.
            axis: The axis.
            source: Must have the axis.
            cuts: Sub-dimensions, major to minor, that a dimension should be split between.

        Returns:
            None if the axis doesn't fit there.
        """
        key, alone = source.places[axis]
        current = splits.items.get(key)
        if current is None:
            return self.splits_of({**splits.items, key: alone})
        order = (*dim_axes(current), axis)
        plain = self.compose(current, alone, order=order)
        sizes = cuts.get(key, ())
        if plain is None or factorize_dim(plain, sizes or (dim_size(plain),), self.mesh) is None:
            plain = self.compose(current, alone, sizes, order) or plain
        return self.splits_of({**splits.items, key: plain}) if plain is not None else None

    def compose(
        self,
        one: DimLayout,
        other: DimLayout,
        cuts: Sequence[IntExpr] = (),
        order: Sequence[str] | None = None,
    ) -> DimLayout | None:
        """Returns a dimension split by the axes of both layouts, or None if they don't align.

        Args:
            one, other: The layouts. They have no axis in common.
            cuts: Sub-dimensions, major to minor, to keep apart.
            order: Axes from the major to the minor one, where they share a sub-dimension; by
                default as in the mesh.
        """
        sizes = _common_sizes(one, other, tuple(SubDim(size) for size in cuts))
        if sizes is None:
            return None
        left, right = (factorize_dim(dim, sizes, self.mesh) for dim in (one, other))
        if left is None or right is None:
            return None
        rank = list(order or self.mesh.dim_names).index
        joined: list[SubDim] = []
        for first, second in zip(left, right, strict=True):
            if len(first) != 1 or len(second) != 1:
                return None
            axes = sorted(first[0].axes + second[0].axes, key=rank)
            joined.append(SubDim(first[0].size, tuple(axes)))
        return normalize_dim(tuple(joined), self.mesh)


def _common_sizes(*dims: DimLayout) -> list[IntExpr] | None:
    """Returns the sizes of the coarsest sub-dimensions that refine all layouts."""
    strides: set[IntExpr] = {1}
    for dim in dims:
        stride: IntExpr = 1
        for sub in reversed(dim):
            stride = stride * sub.size
            strides.add(stride)
    ordered = sorted(strides, key=planned)
    sizes: list[IntExpr] = []
    for minor, major in pairwise(ordered):
        size = exact_quotient(major, minor)
        if size is None:
            return None
        sizes.append(size)
    return sizes[::-1] or [1]
