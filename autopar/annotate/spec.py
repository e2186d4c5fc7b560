"""ShardSpec: what `shard` was told, and the text in which a graph carries it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autopar.annotate.mapping_text import Entry
from autopar.ir.errors import AnnotationError
from autopar.ir.layout import DimMapping, Layout
from autopar.ir.mesh import ProcessMesh


def spec_text(mesh: ProcessMesh, dims_mapping: Sequence[DimMapping]) -> str:
    """Returns a mesh and a dims_mapping as text, unchecked.

    It is called while torch traces the user's model, so it is built of what torch can trace.
    """
    return f"({mesh.shape}, {mesh.dim_names}, {mesh.process_ids}, {tuple(dims_mapping)})"


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What `shard` was told.

    Attributes:
        mesh: The processes.
        dims_mapping: One entry per tensor dimension: -1, the name of an axis, or several.
    """

    mesh: ProcessMesh
    dims_mapping: tuple[Entry, ...]

    @classmethod
    def parse(cls, text: str) -> ShardSpec:
        """Parses what `spec_text` wrote.

        Raises:
            AnnotationError: If the text is something else, or names axes that the mesh lacks.
        """
        try:
            shape, names, ids, mapping = ast.literal_eval(text)
            mesh = ProcessMesh(_nested(ids, shape), names)
        except (ValueError, TypeError, SyntaxError, IndexError) as error:
            raise AnnotationError(f"not the text of a shard annotation: {text!r}") from error
        return cls(mesh, tuple(_names(entry, mesh) for entry in mapping))

    def layout(self, shape: Sequence[int]) -> Layout:
        """Returns the layout of a tensor of this shape.

        Raises:
            AnnotationError: On a wrong length, or an axis used twice.
        """
        return Layout.from_dims_mapping(self.mesh, shape, self.dims_mapping)


def _names(entry: DimMapping, mesh: ProcessMesh) -> Entry:
    if entry is None or entry == -1 or entry == ():
        return -1
    if isinstance(entry, int) and entry < -1:
        raise AnnotationError(f"dims_mapping entry {entry}: use -1 for 'not split', or an axis")
    if isinstance(entry, (int, str)):
        return mesh.dim_names[mesh.axis_index(entry)]
    return tuple(mesh.dim_names[mesh.axis_index(axis)] for axis in entry)


def _nested(ids: Sequence[int], shape: Sequence[int]) -> Any:
    nested: list[Any] = list(ids)
    for size in reversed(shape[1:]):
        nested = [nested[at : at + size] for at in range(0, len(nested), size)]
    return nested
