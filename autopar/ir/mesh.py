"""ProcessMesh: an n-d array of logical process ids with named axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from autopar.base.arguments import NAMES, WHOLE, expect, one_of, shown
from autopar.base.errors import AnnotationError, near_misses
from autopar.ir.fixed import Fixed, Index, index_text, indices_of
from autopar.ir.mesh_array import compact, flat

RESERVED = ("min", "max", "None", "null", "Null", "NULL")
"""What axes can't be called: functions of rank expressions, and what stands for no axis in pins."""


class ProcessMesh:
    """An n-d array of logical processes, over whose axes tensors are split.

        >>> mesh = ProcessMesh([[0, 1, 2, 3], [4, 5, 6, 7]], dim_names=["dp", "tp"])
        >>> mesh.shape, mesh.ndim, mesh.axis_size("tp")
        ((2, 4), 2, 4)
        >>> mesh["dp", 1].process_ids
        (4, 5, 6, 7)

    Immutable and hashable. A sub-mesh knows the mesh it was taken from (`parent`) and at which
    coordinates (`fixed`): a slice at one index of an axis, a box at one or several. What is on a
    box is the same at all of these, so the axis is none of its own: `shape` is that of one copy.
    A run is at consecutive indices of an axis, which is one of its own, of as many processes.

    Args:
        mesh: Nested lists or an array of distinct process ids >= 0.
        dim_names: One name per axis; by default `d0`, `d1`, ...
        parent: The mesh that this one is part of.

    Raises:
        AnnotationError: If the array is ragged, empty, has repeated or negative ids, or the names
            don't fit.
    """

    __slots__ = ("_hash", "_ids", "_sizes", "dim_names", "fixed", "parent", "runs", "shape")

    shape: tuple[int, ...]
    dim_names: tuple[str, ...]
    parent: ProcessMesh | None
    fixed: Fixed
    runs: Mapping[str, range]
    """Of which indices those of its own axes are that have but some of the whole mesh's."""

    def __init__(
        self,
        mesh: Any,
        dim_names: Sequence[str] | None = None,
        parent: ProcessMesh | None = None,
    ) -> None:
        expect(NAMES.or_none, dim_names=dim_names)
        expect(one_of(ProcessMesh, words="the mesh that it is part of").or_none, parent=parent)
        shape, ids = flat(mesh)
        self._set(shape, compact(ids), dim_names, parent, ())

    @classmethod
    def of_shape(cls, shape: Sequence[int], dim_names: Sequence[str] | None = None) -> ProcessMesh:
        """Returns the mesh of this shape whose process ids count from 0 in row-major order."""
        if not shape or any(size < 1 for size in shape):
            raise AnnotationError(
                f"mesh shape {list(shape)}: a mesh needs an axis, and every axis needs at least 1"
                " process"
            )
        mesh = cls.__new__(cls)
        mesh._set(tuple(shape), range(math.prod(shape)), dim_names, None, ())
        return mesh

    @classmethod
    def of_ids(
        cls,
        ids: Sequence[int],
        shape: Sequence[int],
        dim_names: Sequence[str] | None = None,
        parent: ProcessMesh | None = None,
    ) -> ProcessMesh:
        """Returns the mesh of this shape with these process ids, in row-major order."""
        nested: list[object] = list(ids)
        for size in reversed(shape[1:]):
            nested = [nested[at : at + size] for at in range(0, len(nested), size)]
        return cls(nested, dim_names, parent)

    def _set(
        self,
        shape: tuple[int, ...],
        ids: range | tuple[int, ...],
        dim_names: Sequence[str] | None,
        parent: ProcessMesh | None,
        fixed: Fixed,
    ) -> None:
        names = tuple(dim_names) if dim_names is not None else _default_names(len(shape))
        _check_names(names, shape)
        if parent is not None and (strangers := set(ids) - set(parent.process_ids)):
            raise AnnotationError(f"sub-mesh has processes outside its parent: {sorted(strangers)}")
        self.shape = shape
        self._sizes = dict(zip(names, shape, strict=True))
        self._ids = ids
        self.dim_names = names
        self.parent = parent
        self.fixed = fixed
        self.runs = {axis: index for axis, index in fixed if isinstance(index, range)}
        self._hash = hash((shape, ids, names, parent, fixed))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self._ids)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """All process ids in row-major order."""
        return tuple(self._ids)

    @property
    def ids(self) -> range | tuple[int, ...]:
        """The process ids in row-major order, as a `range` where they count up by one."""
        return self._ids

    @property
    def topology(self) -> tuple[int, ...]:
        """The shape, by the name it has in Paddle's annotation interface."""
        return self.shape

    @property
    def process_group(self) -> tuple[int, ...]:
        """The process ids, by the name they have in Paddle's annotation interface."""
        return self.process_ids

    @property
    def root(self) -> ProcessMesh:
        """The mesh that this one is a part of, itself part of none."""
        mesh = self
        while mesh.parent is not None:
            mesh = mesh.parent
        return mesh

    def axis_index(self, axis: int | str) -> int:
        """Returns the position of an axis given by name or by index (negative from the end).

        An index may be a text, as on the command line: no axis is called like a number.
        """
        if isinstance(axis, str) and axis.isdecimal():
            axis = int(axis)
        if isinstance(axis, str):
            if axis in self.dim_names:
                return self.dim_names.index(axis)
            hint = near_misses(axis, self.dim_names)
            raise AnnotationError(f"mesh has no axis {axis!r}, only {list(self.dim_names)}{hint}")
        if not -self.ndim <= axis < self.ndim:
            raise AnnotationError(f"mesh axis {axis} is out of range for mesh {self}")
        return axis % self.ndim

    def axis_size(self, axis: str) -> int:
        """Returns the number of processes along an axis."""
        size = self._sizes.get(axis)
        return self.shape[self.axis_index(axis)] if size is None else size

    def axes_size(self, axes: Sequence[str]) -> int:
        """Returns the number of processes along several axes together."""
        return math.prod(self.axis_size(axis) for axis in axes)

    @property
    def place(self) -> str:
        """Which part of a mesh it is, as text: `pp=0`, or `tp=0+2`; "" for all of one."""
        return ", ".join(f"{axis}={index_text(index)}" for axis, index in self.fixed)

    def coordinates(self, position: int) -> dict[str, int]:
        """Returns the coordinates of the process at a row-major position, fixed axes included."""
        coords: dict[str, int] = {}
        for axis, choices in reversed(_choices(self).items()):
            position, at = divmod(position, len(choices))
            coords[axis] = choices[at]
        return coords

    def __getitem__(self, key: int | str | slice | tuple[str, int | slice]) -> ProcessMesh:
        """Returns a sub-mesh: `mesh[i]` along the first axis, `mesh["tp", i]` along a named one.

        `mesh["tp", i:k]` is a run, of which the axis is one of its own.
        """
        axis, index = key if isinstance(key, tuple) and len(key) == 2 else (0, key)
        if isinstance(index, str):
            raise AnnotationError(f"mesh[{index!r}] needs an index too: mesh[{index!r}, 0]")
        at = self.axis_index(axis)
        if isinstance(index, slice):
            return self.run(self.dim_names[at], range(self.shape[at])[index])
        if not WHOLE.fits(index):
            raise AnnotationError(f"mesh[{shown(key)}]: give an index, or an axis and an index")
        if not -self.shape[at] <= index < self.shape[at]:
            raise AnnotationError(f"index {index} is outside axis {self.dim_names[at]!r} of {self}")
        return _part(self, at, index % self.shape[at])

    def box(self, axis: str, indices: Iterable[int]) -> ProcessMesh:
        """Returns the part at some indices of an axis; at all of them, the mesh itself."""
        own = tuple(sorted(set(indices)))
        if len(own) == 1:
            return self[axis, own[0]]
        at = self.axis_index(axis)
        if not own or own[0] < 0 or own[-1] >= self.shape[at]:
            raise AnnotationError(f"indices {list(own)} are not of axis {axis!r} of {self}")
        return self if len(own) == self.shape[at] else _part(self, at, own)

    def run(self, axis: str, indices: range) -> ProcessMesh:
        """Returns the part at a run of an axis, along which tensors may be split; see `box`."""
        at = self.axis_index(axis)
        if indices.step != 1 or not 0 <= indices.start < indices.stop <= self.shape[at]:
            raise AnnotationError(
                f"{indices} is no run of the indices of axis {axis!r} of {self}, one behind the"
                " other"
            )
        if len(indices) == 1:
            return self[axis, indices[0]]
        return self if len(indices) == self.shape[at] else _part(self, at, indices)

    def part(self, axis: str, index: Index) -> ProcessMesh:
        """Returns the part at an index of an axis, at several, or at a run of them."""
        if isinstance(index, range):
            return self.run(axis, index)
        return self.box(axis, indices_of(index))

    def at(self, fixed: Iterable[tuple[str, Index]]) -> ProcessMesh:
        """Returns the part at these coordinates; in whichever order they come, the same one."""
        sub, indices = self, dict(fixed)
        for axis in self.dim_names:
            if axis in indices:
                sub = sub.part(axis, indices[axis])
        return sub

    def first(self, axis: str) -> int:
        """Returns at which coordinate an axis of its own begins: 0, but for runs."""
        return self.runs[axis].start if axis in self.runs else 0

    def slice_of(self, part: ProcessMesh) -> ProcessMesh | None:
        """Returns the slice of this mesh that has the processes of another; None if none has.

        The other may be a slice of an equal mesh, or list processes that make up a slice. Its axes
        may have other names.
        """
        if part.root == self and len(part.fixed) + part.ndim == self.ndim + len(part.runs):
            return self.at(part.fixed)
        sub = self.box_with(part.process_ids)
        return sub if sub is not None and sub.shape == part.shape else None

    def box_with(self, ids: Sequence[int]) -> ProcessMesh | None:
        """Returns the box of this mesh that has these processes, in order; None if none has."""
        position = {process: at for at, process in enumerate(self._ids)}
        if not set(ids) <= position.keys():
            return None
        found = [self.coordinates(position[process]) for process in ids]
        sub = self.at((axis, tuple({each[axis] for each in found})) for axis in self.dim_names)
        return sub if sub.process_ids == tuple(ids) else None

    def __iter__(self) -> Iterator[ProcessMesh]:
        return (self[index] for index in range(self.shape[0]))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ProcessMesh) or self._hash != other._hash:
            return False
        mine = (self.shape, self.dim_names, self.fixed, self._ids, self.parent)
        return mine == (other.shape, other.dim_names, other.fixed, other._ids, other.parent)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"ProcessMesh({', '.join(self._axes())})"

    def __str__(self) -> str:
        return ",".join(self._axes())

    def _axes(self) -> list[str]:
        return [f"{name}={size}" for name, size in zip(self.dim_names, self.shape, strict=True)]

    def axis_sizes(self) -> Mapping[str, int]:
        """Returns the size of each axis by name."""
        return dict(zip(self.dim_names, self.shape, strict=True))


@lru_cache(maxsize=1024)
def _part(mesh: ProcessMesh, at: int, index: Index) -> ProcessMesh:
    """Returns the sub-mesh at an index of an axis given by position; the same one every time."""
    if run := mesh.runs.get(mesh.dim_names[at]):
        within = _within(run, index)
        return _base(mesh).at({**dict(mesh.fixed), mesh.dim_names[at]: within}.items())
    sub = ProcessMesh.__new__(ProcessMesh)
    sizes = (len(index),) if isinstance(index, range) else ()
    shape = (*mesh.shape[:at], *sizes, *mesh.shape[at + 1 :])
    names = mesh.dim_names[: at + len(sizes)] + mesh.dim_names[at + 1 :]
    fixed = (*mesh.fixed, (mesh.dim_names[at], index))
    base = _base(mesh)
    positions = [0]
    for axis, choices in _choices(mesh, dict(fixed)).items():
        size = base.axis_size(axis)
        positions = [position * size + choice for position in positions for choice in choices]
    sub._set(shape, compact([base.ids[position] for position in positions]), names, mesh, fixed)
    return sub


def _within(run: range, index: Index) -> Index:
    """Returns where something is along an axis, given where it is within a run of that."""
    if isinstance(index, range):
        return run[index.start : index.stop]
    return run[index] if isinstance(index, int) else tuple(run[each] for each in index)


def _base(mesh: ProcessMesh) -> ProcessMesh:
    """Returns the mesh of which another one is a part at some coordinates."""
    while mesh.fixed and mesh.parent is not None:
        mesh = mesh.parent
    return mesh


def _choices(
    mesh: ProcessMesh, fixed: Mapping[str, Index] | None = None
) -> dict[str, Sequence[int]]:
    """Returns at which indices of each axis of its base a mesh is."""
    where, base = dict(mesh.fixed) if fixed is None else fixed, _base(mesh)
    return {
        axis: indices_of(where[axis]) if axis in where else range(base.axis_size(axis))
        for axis in base.dim_names
    }


def _default_names(ndim: int) -> tuple[str, ...]:
    return tuple(f"d{axis}" for axis in range(ndim))


def _check_names(names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    if len(names) != len(shape):
        raise AnnotationError(f"{len(names)} dim_names {list(names)} for a {len(shape)}-d mesh")
    if len(set(names)) != len(names):
        raise AnnotationError(f"mesh axis names must differ: {list(names)}")
    if bad := [name for name in names if not name.isidentifier() or name in RESERVED]:
        raise AnnotationError(
            f"mesh axis names must be identifiers, and not {', '.join(RESERVED)}: {bad}"
        )
