"""Mark: what a user says of a tensor within a model, and the text in which a graph carries it.

`autopar.annotate` writes the text into the graph, as the argument of an op of its own, and the
frontend reads it there. So no table beside the graph is needed, and a saved graph keeps its marks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autopar.base.errors import AnnotationError
from autopar.ir.dims_mapping import DimMapping, check_length
from autopar.ir.expr.expression import IntExpr
from autopar.ir.fixed import index_of_text, index_text
from autopar.ir.layout import MONOIDS, Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.text.cursor import TextError
from autopar.ir.text.parse_parts import parse_arg
from autopar.ir.text.print_parts import arg_str

STAGE = "autopar.pipeline_stage"
"""The key of a pipeline stage in what torch notes of a node (its `meta["custom"]`)."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a user says of a tensor.

    Attributes:
        mesh: The processes; None for those of the program.
        dims_mapping: One entry per tensor dimension: -1 or None (not split), a mesh axis by index
            or name, or several. None if nothing is said about it.
        partial: Mesh axes over which the tensor stays pending a reduction, with the monoid.
        mask: Per process of the mesh, in row-major order, whether it holds the tensor, and the
            shape in which that was said. None for all. Compiling refuses what is no box.
        offload: The memory that holds the tensor between uses; "" for the device's own. Compiling
            refuses others than the host's, and any of what is no activation and no parameter.
        place: Where the user wrote it, as `model.py:12`; "" if the graph knows better.
        is_gradient: Whether it marks the gradient of what the user marked.
        chunk: The dimension along which it is computed in parts, one after another, and how many.
    """

    mesh: ProcessMesh | None = None
    dims_mapping: tuple[DimMapping, ...] | None = None
    partial: tuple[tuple[int | str, str], ...] = ()
    mask: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    offload: str = ""
    place: str = ""
    is_gradient: bool = False
    chunk: tuple[int, int] | None = None

    def text(self) -> str:
        """Returns the text from which `parse` makes an equal mark."""
        mesh = None if self.mesh is None else _mesh_data(self.mesh)
        rest = self.partial, self.mask, self.offload, self.place, self.is_gradient
        chunk = () if self.chunk is None else (self.chunk,)
        said: Any = (mesh, self.dims_mapping, *rest, *chunk)
        return arg_str(said)

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Parses what `text` wrote.

        Raises:
            AnnotationError: If the text is something else.
        """
        try:
            said: Any = parse_arg(text, "mark")
            mesh, *rest = said
            if len(rest) not in (6, 7):
                raise ValueError
            return cls(None if mesh is None else _mesh(mesh), *rest)
        except (ValueError, TypeError, TextError, IndexError) as error:
            raise AnnotationError(f"not the text of a mark: {text!r}") from error

    def of_gradient(self) -> Mark:
        """Returns the mark of the gradient of a tensor that is marked so.

        It lies as the tensor does. Where the tensor is pending a sum, each piece counts in full,
        so the gradient is complete.
        """
        return Mark(self.mesh, self.dims_mapping, place=self.place, is_gradient=True)

    def on(self, mesh: ProcessMesh) -> Mark:
        """Returns the mark on a mesh of the same processes, whose axes may have other names."""
        if self.mesh is None or self.mesh.dim_names == mesh.dim_names:
            return replace(self, mesh=mesh)
        names = dict(zip(self.mesh.dim_names, mesh.dim_names, strict=True))
        entries = None
        if self.dims_mapping is not None:
            entries = tuple(_renamed(entry, names) for entry in self.dims_mapping)
        partial = tuple((names.get(str(axis), axis), monoid) for axis, monoid in self.partial)
        return replace(self, mesh=mesh, dims_mapping=entries, partial=partial)

    def check(self, shape: Sequence[int]) -> None:
        """Checks what can be checked before the program's mesh is known.

        Raises:
            AnnotationError: If the mark doesn't fit a tensor of this shape, or its own mesh.
        """
        if self.mesh is not None:
            self.layout(shape, self.mesh)
            self.masked(self.mesh)
        elif self.dims_mapping is not None:
            check_length(self.dims_mapping, shape)

    def layout(self, shape: Sequence[IntExpr], mesh: ProcessMesh) -> Layout | None:
        """Returns the layout of a tensor of this shape on a mesh; None if none is said.

        Raises:
            AnnotationError: On a wrong length, an unknown axis or reduction, an axis used twice.
        """
        if self.dims_mapping is None:
            return None
        layout = Layout.from_dims_mapping(mesh, shape, self.dims_mapping)
        if not self.partial:
            return layout
        layout = layout.with_partial(
            {mesh.dim_names[mesh.axis_index(axis)]: monoid for axis, monoid in self.partial}
        )
        problems = layout.problems(shape)
        if len({monoid for _, monoid in self.partial}) > 1:
            problems.append("different reductions at once, whose order would matter")
        if problems:
            raise AnnotationError(
                f"partial={dict(self.partial)}: {'; '.join(problems)}; give axes that split no"
                f" dimension, each with one of {', '.join(MONOIDS)}"
            )
        return layout.normalized()

    def masked(self, mesh: ProcessMesh) -> tuple[int, ...] | None:
        """Returns the ids of the processes that hold the tensor; None if all do.

        Raises:
            AnnotationError: If the mask has another shape than the mesh.
        """
        if self.mask is None:
            return None
        shape, bits = self.mask
        if shape != mesh.shape:
            raise AnnotationError(
                f"a mask of shape {list(shape)} for mesh {mesh}; give one 0 or 1 per process"
            )
        return tuple(process for process, bit in zip(mesh.ids, bits, strict=True) if bit)


def _renamed(entry: DimMapping, names: Mapping[str, str]) -> DimMapping:
    if isinstance(entry, str):
        return names.get(entry, entry)
    if entry is None or isinstance(entry, int):
        return entry
    return tuple(names.get(axis, axis) if isinstance(axis, str) else axis for axis in entry)


def partial_of(given: Mapping[int | str, str] | None) -> tuple[tuple[int | str, str], ...]:
    """Returns pending reductions by mesh axis as pairs."""
    return tuple(given.items()) if given else ()


def mask_of(given: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shape and the entries of a nested list or array of 0 and 1.

    Raises:
        AnnotationError: If it is ragged, holds something else, or only zeros.
    """
    level: list[Any] = [given.tolist() if hasattr(given, "tolist") else given]
    shape: list[int] = []
    while level and isinstance(level[0], (list, tuple)):
        lengths = {len(row) if isinstance(row, (list, tuple)) else -1 for row in level}
        if len(lengths) != 1:
            raise AnnotationError(f"mask {given!r}: the rows differ in length")
        shape.append(lengths.pop())
        level = [item for row in level for item in row]
    if not shape or any(item not in (0, 1) for item in level) or not any(level):
        raise AnnotationError(
            f"mask {given!r}: write nested lists in the shape of the mesh, with 1 for the processes"
            " that hold the tensor and 0 for the others"
        )
    return tuple(shape), tuple(int(item) for item in level)


def _mesh_data(mesh: ProcessMesh) -> tuple[Any, ...]:
    """Returns a mesh as an argument of an op: (parent, axis, index) of a slice, else its array."""
    parent = None if mesh.parent is None else _mesh_data(mesh.parent)
    if mesh.fixed:
        axis, index = mesh.fixed[-1]
        return parent, axis, index_text(index) if isinstance(index, range) else index
    ids = mesh.ids
    return mesh.shape, mesh.dim_names, ids[0] if isinstance(ids, range) else ids, parent


def _mesh(data: tuple[Any, ...]) -> ProcessMesh:
    if len(data) == 3:
        parent, axis, index = data
        if isinstance(index, str):
            index = index_of_text(index)
        return _mesh(parent).at([(axis, index)])
    shape, names, ids, parent = data
    if isinstance(ids, int):
        ids = range(ids, ids + math.prod(shape))
    return ProcessMesh(_nested(list(ids), shape), names, _mesh(parent) if parent else None)


def _nested(ids: list[Any], shape: Sequence[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        ids = [ids[at : at + size] for at in range(0, len(ids), size)]
    return ids
