"""Global outputs: the ranks' pieces, sent to rank 0 and put together there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.ir.deployment import Deployment
from autopar.runtime.boxes import Box, box_shape, is_empty, place
from autopar.runtime.communication import carried, restored
from autopar.runtime.kernels import TORCH_DTYPES
from autopar.runtime.ports import port_box


class OutputGathering:
    """Gathers the outputs of a deployment; who sends what is found once.

    A piece that several ranks hold is sent by the first of them.

    Args:
        deployment: Who holds what.
        rank: This rank.
    """

    def __init__(self, deployment: Deployment, rank: int) -> None:
        self.rank = rank
        self.ports = deployment.program_of(0).signature.outputs
        self.owners = [piece_owners(deployment, at) for at in range(len(self.ports))]

    def __call__(self, results: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns the global outputs by label, in main memory, on rank 0; nothing elsewhere.

        Args:
            results: The outputs of this rank.
        """
        outputs: dict[str, Tensor] = {}
        for port, owners, result in zip(self.ports, self.owners, results, strict=True):
            if self.rank:
                _send(result, [box for box, owner in owners.items() if owner == self.rank])
                continue
            whole = torch.empty(port.shape, dtype=TORCH_DTYPES[port.dtype])
            for box, owner in owners.items():
                place(whole, _receive(box, result, owner).cpu(), box)
            outputs[port.label or port.name] = whole
        return outputs


def piece_owners(deployment: Deployment, output: int) -> dict[Box, int]:
    """Returns the pieces of an output that aren't empty and the first rank that holds each."""
    owners: dict[Box, int] = {}
    for rank in range(deployment.world_size):
        port = deployment.program_of(rank).signature.outputs[output]
        box = port_box(port, deployment.coords_of(rank))
        if not is_empty(box):
            owners.setdefault(box, rank)
    return owners


def _send(piece: Tensor, boxes: Sequence[Box]) -> None:
    for _ in boxes:
        dist.send(carried(piece), 0)


def _receive(box: Box, mine: Tensor, owner: int) -> Tensor:
    if owner == 0:
        return mine
    buffer = carried(mine.new_empty(box_shape(box)))
    dist.recv(buffer, owner)
    return restored(buffer, mine.dtype)
