"""`shard`: marks a tensor within a torch model with a layout.

The mark is an op of its own, `autopar::shard`, that survives export and joint capture of forward
and backward. Its second argument holds the mesh and the mapping as text, so that no table outside
the graph is needed. In eager mode it copies its input and has no other effect; its gradient is
marked with the same layout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from autopar.annotate.mapping_text import Entry
from autopar.ir.errors import AnnotationError
from autopar.ir.layout import DimMapping, Layout
from autopar.ir.mesh import ProcessMesh

if TYPE_CHECKING:
    import torch


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
    def of(
        cls, mesh: ProcessMesh, shape: Sequence[int], dims_mapping: Sequence[DimMapping]
    ) -> ShardSpec:
        """Returns the canonical form of what a user wrote for a tensor of this shape.

        Raises:
            AnnotationError: As `Layout.from_dims_mapping`.
        """
        layout = Layout.from_dims_mapping(mesh, shape, dims_mapping)
        entries = [_names(entry, mesh) for entry in dims_mapping]
        del layout
        return cls(mesh, tuple(entries))

    def to_text(self) -> str:
        """Returns the form in which the op carries it."""
        mesh = {"ids": _nested(self.mesh), "dim_names": self.mesh.dim_names}
        return json.dumps({"mesh": mesh, "dims_mapping": self.dims_mapping})

    @classmethod
    def from_text(cls, text: str) -> ShardSpec:
        """Parses what `to_text` wrote.

        Raises:
            AnnotationError: If the text is something else.
        """
        try:
            found = json.loads(text)
            mesh = ProcessMesh(found["mesh"]["ids"], found["mesh"]["dim_names"])
            entries = [tuple(e) if isinstance(e, list) else e for e in found["dims_mapping"]]
        except (ValueError, KeyError, TypeError) as error:
            raise AnnotationError(f"not the text of a shard annotation: {text!r}") from error
        return cls(mesh, tuple(entries))


def shard(x: torch.Tensor, mesh: ProcessMesh, dims_mapping: Sequence[DimMapping]) -> torch.Tensor:
    """Marks a tensor with the layout that it shall have; returns the marked tensor.

        x = shard(x, ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"]), ["dp", -1])

    Args:
        x: The tensor. Its value is unchanged.
        mesh: The processes.
        dims_mapping: One entry per dimension of `x`: -1 (not split), a mesh axis by index or name,
            or a tuple of axes, major to minor.

    Raises:
        AnnotationError: On a wrong length, an unknown axis, or an axis used twice; at this call.
    """
    spec = ShardSpec.of(mesh, tuple(int(size) for size in x.shape), dims_mapping)
    marked: torch.Tensor = _shard_op()(x, spec.to_text())
    return marked


@cache
def _shard_op() -> Any:
    """Registers the op at its first use, so that this module is importable without torch."""
    import torch

    def autopar_shard(x: torch.Tensor, spec: str) -> torch.Tensor:
        # An op must not return an alias of its input.
        return x.clone()

    op = torch.library.custom_op(
        "autopar::shard", autopar_shard, mutates_args=(), schema="(Tensor x, str spec) -> Tensor"
    )

    def fake(x: torch.Tensor, spec: str) -> torch.Tensor:
        return torch.empty_like(x)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.spec = inputs[1]

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return op(grad, ctx.spec), None

    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    return op


def _names(entry: DimMapping, mesh: ProcessMesh) -> Entry:
    if entry is None or entry == -1 or entry == ():
        return -1
    if isinstance(entry, (int, str)):
        return mesh.dim_names[mesh.axis_index(entry)]
    return tuple(mesh.dim_names[mesh.axis_index(axis)] for axis in entry)


def _nested(mesh: ProcessMesh) -> Any:
    ids: list[Any] = list(mesh.process_ids)
    for size in reversed(mesh.shape[1:]):
        ids = [ids[at : at + size] for at in range(0, len(ids), size)]
    return ids
