"""The state of a training as DTensors, over the memory that steps write to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from autopar.base.arguments import shown
from autopar.base.errors import InvalidInputError
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.runtime.execute.ranks import Ranks
from autopar.runtime.state.placements import (
    as_dtensor,
    check_ascending,
    device_mesh_of,
    placements_of,
    ranks_of,
)
from autopar.runtime.state.state import State


def check_mesh(ranks: Ranks, layouts: Mapping[str, Layout], mesh: DeviceMesh | None) -> None:
    """Refuses a mesh on which the pieces of this process's rank are no DTensors.

    Args:
        ranks: Who holds the pieces.
        layouts: How, by value name.
        mesh: The ranks as torch knows them; None if a mesh is to be made.

    Raises:
        InvalidInputError: If there is no process group, the mesh is another one, or DTensors can't
            lie on it.
    """
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise InvalidInputError(
            f"dtensors({shown(mesh)}): give a torch DeviceMesh of the program's ranks, or nothing"
            " to have one made"
        )
    if not dist.is_initialized() or len(ranks.programs) != 1:
        raise InvalidInputError(
            "DTensors need a job of processes; state_dict() has whole tensors, shards() pieces"
        )
    wanted = ranks_of(ranks.deployment, _compiled_mesh(layouts))
    if mesh is not None and not torch.equal(mesh.mesh, wanted):
        raise InvalidInputError(
            f"the program is compiled for the ranks {wanted.tolist()}, the mesh has"
            f" {mesh.mesh.tolist()}"
        )
    check_ascending(wanted)


class Wrapping:
    """Makes DTensors of the pieces of this process's rank. All ranks call alike.

    Args:
        ranks, layouts, mesh: See `check_mesh`, which has let them pass.
    """

    def __init__(
        self, ranks: Ranks, layouts: Mapping[str, Layout], mesh: DeviceMesh | None
    ) -> None:
        (self.rank,) = ranks.programs
        self.layouts = layouts
        self.compiled = compiled = _compiled_mesh(layouts)
        self.mesh = mesh or device_mesh_of(ranks.deployment, compiled, ranks.device.type)

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


def _compiled_mesh(layouts: Mapping[str, Layout]) -> ProcessMesh:
    return next(iter(layouts.values())).mesh.root
