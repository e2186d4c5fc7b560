"""Places: sub-dimensions of a tensor, and how layouts of dimensions are cut at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autopar.ir.dims import DimLayout, SubDim, block_size, dim_size, factorize_dim, normalize_dim
from autopar.ir.expr.expression import IntExpr, exact_quotient
from autopar.ir.expr.facts import divides
from autopar.ir.mesh import ProcessMesh


@dataclass(frozen=True, slots=True)
class Place:
    """A sub-dimension of a tensor: `size` in dimension `dim`, between `outer` and `inner` others.

    `outer * size * inner` is the size of the dimension.
    """

    dim: int
    outer: IntExpr
    size: IntExpr
    inner: IntExpr


def places_of(position: int, dim: DimLayout) -> Iterator[tuple[Place, SubDim]]:
    """Yields each sub-dimension with its place; at a size of 0 what lies inside counts as 1."""
    outer: IntExpr = 1
    size = dim_size(dim)
    for sub in dim:
        done = outer * sub.size
        inner = size // done if size != 0 else 1
        yield Place(position, outer, sub.size, inner), sub
        outer = done


def nests(size: IntExpr, major: int, minor: int) -> bool:
    """Whether cutting blocks of `size` over `major` into `minor` parts is the cut over both.

    True where a collective over the minor axes alone, which cuts what its members hold together
    into equal blocks, finds the blocks that `major * minor` parts of the whole have.
    """
    if major == 1:
        return True
    if not isinstance(size, int):
        return divides(major * minor, size)
    block = block_size(size, major)
    if block % minor:
        return False
    rest = size % block if block else 0
    return rest == 0 or block_size(rest, minor) == block // minor


def cut(dim: DimLayout, places: Sequence[Place], mesh: ProcessMesh) -> tuple[DimLayout, ...] | None:
    """Cuts a dimension's layout at places in it, given from the major to the minor one.

    Returns the parts before, at, between and behind the places: 2 n + 1 for n places. None if the
    layout's blocks don't respect those boundaries, or the places overlap. The split of a single
    element is at a place of size 1, and otherwise before all places.
    """
    single, dim = (dim[:1], dim[1:]) if dim[0].size == 1 and len(dim) > 1 else ((), dim)
    if not single and len(places) == 1 and places[0].outer == places[0].inner == 1:
        return (SubDim(1),), dim, (SubDim(1),)
    sizes: list[IntExpr] = []
    done: IntExpr = 1
    for place in places:
        between = exact_quotient(place.outer, done)
        if between is None:
            return None
        sizes += [between, place.size]
        done = place.outer * place.size
    parts = factorize_dim(dim, [*sizes, places[-1].inner], mesh)
    if parts is None:
        return None
    home = int(places[0].size == 1)
    parts = (*parts[:home], (*single, *parts[home]), *parts[home + 1 :])
    return tuple(normalize_dim(part, mesh) if len(part) > 1 else part for part in parts)


def widen(place: Place, dims: Sequence[DimLayout], mesh: ProcessMesh) -> Place:
    """Returns the place together with the unsplit elements just minor to it.

    A digit with what follows it is one stretch of the local tensor, so moves need no view. The
    place is returned as it is where its blocks would change: `(5@x)(3)` is not `15@x`, and
    `(1@x)(3)` not `3@x`.
    """
    if place.size == 1:
        return place
    parts = cut(dims[place.dim], [place], mesh)
    if parts is None or parts[2][0].axes:
        return place
    minor = parts[2][0].size
    wide = Place(place.dim, place.outer, place.size * minor, place.inner // minor)
    joined = cut(dims[place.dim], [wide], mesh)
    return wide if joined is not None and len(joined[1]) == 1 else place
