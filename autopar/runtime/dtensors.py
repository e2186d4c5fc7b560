"""The state of a training as DTensors, over the memory that steps write to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from autopar.ir.errors import InvalidInputError
from autopar.ir.layout import Layout
from autopar.runtime.placements import (
    as_dtensor,
    check_ascending,
    device_mesh_of,
    placements_of,
    ranks_of,
)
from autopar.runtime.ranks import Ranks
from autopar.runtime.state import State


class Wrapping:
    """Makes DTensors of the pieces of this process's rank.

    Args:
        ranks: Who holds the pieces.
        layouts: How, by value name.
        mesh: The ranks as torch knows them; None to make a mesh.

    Raises:
        InvalidInputError: If there is no process group, the mesh is another one, or DTensors can't
            lie on it.
    """

    def __init__(
        self, ranks: Ranks, layouts: Mapping[str, Layout], mesh: DeviceMesh | None
    ) -> None:
        if mesh is not None and not isinstance(mesh, DeviceMesh):
            raise InvalidInputError(
                f"dtensors({mesh!r}): give a torch DeviceMesh of the program's ranks, or nothing to"
                " have one made"
            )
        if not dist.is_initialized() or len(ranks.programs) != 1:
            raise InvalidInputError(
                "DTensors need a job of processes; state_dict() has whole tensors, shards() pieces"
            )
        (self.rank,) = ranks.programs
        self.layouts = layouts
        self.compiled = compiled = next(iter(layouts.values())).mesh.root
        self.mesh = mesh or device_mesh_of(ranks.deployment, compiled, ranks.device.type)
        wanted = ranks_of(ranks.deployment, compiled)
        if not torch.equal(self.mesh.mesh, wanted):
            raise InvalidInputError(
                f"the program is compiled for the ranks {wanted.tolist()}, the mesh has"
                f" {self.mesh.mesh.tolist()}"
            )

        check_ascending(self.mesh)

    def of(self, state: State, label: str) -> DTensor:
        """Returns a tensor of a state: over the rank's piece, or a whole copy."""
        entry, pieces = state.entries[label], state.pieces(label)[self.rank]
        layout = self.layouts[state.name_of(label)]
        if len(pieces) == 1 and layout.mesh == self.compiled:
            placements = placements_of(layout)
            if placements is not None:
                return as_dtensor(pieces[0].tensor, entry.shape, self.mesh, placements)
        whole = state.whole(label)
        assert whole is not None
        copied = whole.to(pieces[0].tensor.device)
        return as_dtensor(copied, entry.shape, self.mesh, (Replicate(),) * self.mesh.ndim)
