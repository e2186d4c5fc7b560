"""Slots: where in a tensor mesh axes split it, in the form in which a single move can change it.

A layout whose split divides evenly is a set of digits: over axis `a` of 4 processes, `768@a` means
that the digit of radix 4 at stride 192 of the index is the coordinate of `a`. Digits come and go
independently of one another, in any order, and a permutation of axes moves digits about. A split
that doesn't divide evenly is one region whose blocks all axes make together; only its minor axes
come and go, and only where the remaining block boundaries coincide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.ir.layout import DimLayout, SubDim, block_size, factorize_dim, normalize_dim
from autopar.ir.mesh import ProcessMesh

Dims = tuple[DimLayout, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A sub-dimension of a tensor: `size` in dimension `dim`, between `outer` and `inner` others.

    `outer * size * inner` is the size of the dimension.
    """

    dim: int
    outer: int
    size: int
    inner: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Axes that split a sub-dimension and can be put there, or taken away, by one move.

    Attributes:
        axes: The axes, major to minor.
        place: The sub-dimension.
        prefix: The axes, major to these, that split the sub-dimension already.
        region: All axes of a split that doesn't divide evenly; empty for digits.
    """

    axes: tuple[str, ...]
    place: Place
    prefix: tuple[str, ...] = ()
    region: tuple[str, ...] = ()

    @property
    def is_digit(self) -> bool:
        """Whether this is a single digit, independent of all other slots."""
        return len(self.axes) == 1 and not self.region


def slots_of(dims: Dims, mesh: ProcessMesh) -> tuple[Slot, ...]:
    """Returns every slot that a layout fills: single digits, runs of digits, parts of regions."""
    found: list[Slot] = []
    for at, dim in enumerate(dims):
        outer = 1
        size = 1
        for sub in dim:
            size *= sub.size
        for sub in dim:
            inner = size // (outer * sub.size) if size else 1
            if sub.axes:
                found.extend(_sub_slots(Place(at, outer, sub.size, inner), sub.axes, mesh))
            outer *= sub.size
    return tuple(found)


def whole_places(dims: Dims) -> list[Place]:
    """Returns the sub-dimensions that no axis splits."""
    found: list[Place] = []
    for at, dim in enumerate(dims):
        outer = 1
        size = 1
        for sub in dim:
            size *= sub.size
        for sub in dim:
            if not sub.axes and sub.size > 1:
                found.append(Place(at, outer, sub.size, size // (outer * sub.size)))
            outer *= sub.size
    return found


def _sub_slots(place: Place, axes: tuple[str, ...], mesh: ProcessMesh) -> list[Slot]:
    parts = mesh.axes_size(axes)
    found: list[Slot] = []
    if place.size % parts == 0 and place.size:
        outer, rest = place.outer, place.size
        for first in range(len(axes)):
            count = 1
            for last in range(first, len(axes)):
                count *= mesh.axis_size(axes[last])
                digits = Place(place.dim, outer, count, rest // count * place.inner)
                found.append(Slot(axes[first : last + 1], digits))
            step = mesh.axis_size(axes[first])
            outer, rest = outer * step, rest // step
        return found
    for first in range(len(axes)):
        for last in range(first + 1, len(axes) + 1):
            prefix, mine = axes[:first], axes[first:last]
            if nests(place.size, mesh.axes_size(prefix), mesh.axes_size(mine)):
                found.append(Slot(mine, place, prefix, axes))
    return found


def nests(size: int, major: int, minor: int) -> bool:
    """Whether cutting blocks of `size` over `major` into `minor` parts is the cut over both.

    True where a collective over the minor axes alone, which cuts what its members hold together
    into equal blocks, finds the blocks that `major * minor` parts of the whole have.
    """
    if major == 1:
        return True
    block = block_size(size, major)
    if block % minor:
        return False
    rest = size % block if block else 0
    return rest == 0 or block_size(rest, minor) == block // minor


def fill(dims: Dims, slot: Slot, mesh: ProcessMesh) -> Dims | None:
    """Returns the layout with the slot's axes put there, or None if they don't fit."""
    return _change(dims, slot, slot.prefix, slot.prefix + slot.axes, mesh)


def clear(dims: Dims, slot: Slot, mesh: ProcessMesh) -> Dims | None:
    """Returns the layout with the slot's axes taken away, or None if they aren't there."""
    return _change(dims, slot, slot.prefix + slot.axes, slot.prefix, mesh)


def _change(
    dims: Dims, slot: Slot, before: tuple[str, ...], after: tuple[str, ...], mesh: ProcessMesh
) -> Dims | None:
    place = slot.place
    parts = cut(dims[place.dim], [place], mesh)
    if parts is None or parts[1] != (SubDim(place.size, before),):
        return None
    changed = (*parts[0], SubDim(place.size, after), *parts[2])
    return (*dims[: place.dim], normalize_dim(changed, mesh), *dims[place.dim + 1 :])


def cut(dim: DimLayout, places: Sequence[Place], mesh: ProcessMesh) -> tuple[DimLayout, ...] | None:
    """Cuts a dimension's layout at places in it, given from the major to the minor one.

    Returns the parts before, at, between and behind the places: 2 n + 1 for n places. None if the
    layout's blocks don't respect those boundaries, or the places overlap.
    """
    if len(places) == 1 and places[0].outer == places[0].inner == 1:
        return (SubDim(1),), dim, (SubDim(1),)
    sizes: list[int] = []
    done = 1
    for place in places:
        if place.outer % done:
            return None
        sizes += [place.outer // done, place.size]
        done = place.outer * place.size
    parts = factorize_dim(dim, [*sizes, places[-1].inner], mesh)
    if parts is None:
        return None
    return tuple(normalize_dim(part, mesh) if len(part) > 1 else part for part in parts)


def widen(place: Place, dims: Dims, mesh: ProcessMesh) -> Place:
    """Returns the place together with the unsplit elements just minor to it.

    A digit with what follows it is one stretch of the local tensor, so moves need no view. The
    place is returned as it is where its blocks would change: `(5@x)(3)` is not `15@x`.
    """
    parts = cut(dims[place.dim], [place], mesh)
    if parts is None or parts[2][0].axes:
        return place
    minor = parts[2][0].size
    wide = Place(place.dim, place.outer, place.size * minor, place.inner // minor)
    joined = cut(dims[place.dim], [wide], mesh)
    return wide if joined is not None and len(joined[1]) == 1 else place
