"""Global values: the ranks' pieces of an input or output, sent around and put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from autopar.ir.deployment import Deployment
from autopar.ir.expr.at_rank import port_at
from autopar.ir.program import BoxDim, Port, Program
from autopar.runtime.collectives.sending import received_from, send_to_first, sent_to_all
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.boxes import Box, box_shape, is_empty, narrowed, place
from autopar.runtime.ports.ports import holds_all, labelled, port_box, region_of

Side = Literal["inputs", "outputs"]


def ports_of(program: Program, side: Side) -> tuple[Port, ...]:
    """Returns the inputs or outputs of a program."""
    return program.signature.inputs if side == "inputs" else program.signature.outputs


def assemble(whole: Tensor, pieces: Iterable[tuple[Box, Tensor]]) -> Tensor:
    """Fills a global tensor with the ranks' pieces and returns it; equal boxes are read once."""
    seen: set[Box] = set()
    for box, piece in pieces:
        if box not in seen:
            seen.add(box)
            place(whole, piece, box)
    return whole


def empty_whole(port: Port) -> Tensor:
    """Returns memory for the global tensor of a port."""
    return torch.empty(port.known_shape, dtype=TORCH_DTYPES[port.dtype])


class Gathering:
    """Gathers global values of a deployment among processes; who sends what is found once.

    A piece that several ranks hold is sent by the first of them. All ranks call alike.

    Args:
        deployment: Who holds what.
        rank: This rank.
    """

    def __init__(self, deployment: Deployment, rank: int) -> None:
        self.deployment = deployment
        self.rank = rank
        self.holders: dict[tuple[Side, int], dict[Box, list[int]]] = {}

    def outputs(self, results: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """Returns global outputs by label, in main memory, on rank 0; nothing elsewhere.

        Args:
            results: What this rank has of them, by position.
        """
        ports = ports_of(self.deployment.program_of(0), "outputs")
        gathered = {at: self.to_first("outputs", at, result) for at, result in results.items()}
        found = {at: whole for at, whole in gathered.items() if whole is not None}
        return labelled(ports, found)

    def to_first(self, side: Side, at: int, mine: Tensor) -> Tensor | None:
        """Returns a global value, in main memory, on rank 0; None elsewhere.

        Args:
            side, at: Which input or output it is.
            mine: This rank's piece.
        """
        holders = self._holders(side, at)
        if self.rank:
            for owner, *_ in holders.values():
                if owner == self.rank:
                    send_to_first(mine)
            return None
        pieces = ((box, _receive(box, mine, owner).cpu()) for box, (owner, *_) in holders.items())
        return assemble(self._empty(side, at), pieces)

    def to_all(self, side: Side, at: int, mine: Tensor) -> Tensor:
        """Returns a global value, in main memory, on every rank.

        Where all ranks hold all of it, nothing is sent, and one may call without the others.

        Args:
            side, at: Which input or output it is.
            mine: This rank's piece.
        """
        holders = self._holders(side, at)
        pieces = ((box, self._broadcast(box, mine, ranks).cpu()) for box, ranks in holders.items())
        return assemble(self._empty(side, at), pieces)

    def _empty(self, side: Side, at: int) -> Tensor:
        return empty_whole(ports_of(self.deployment.program_of(0), side)[at])

    def _holders(self, side: Side, at: int) -> dict[Box, list[int]]:
        if (side, at) not in self.holders:
            self.holders[side, at] = piece_holders(self.deployment, side, at)
        return self.holders[side, at]

    def _broadcast(self, box: Box, mine: Tensor, ranks: Sequence[int]) -> Tensor:
        if len(ranks) == self.deployment.world_size:
            return mine
        owner = ranks[0]
        return sent_to_all(owner, mine if owner == self.rank else mine.new_empty(box_shape(box)))


def piece_holders(deployment: Deployment, side: Side, at: int) -> dict[Box, list[int]]:
    """Returns the pieces of a value that aren't empty and the ranks that hold each, in order."""
    holders: dict[Box, list[int]] = {}
    for rank in range(deployment.world_size):
        port = ports_of(deployment.program_of(rank), side)[at]
        box = port_box(port, deployment.coords_of(rank))
        if not is_empty(box):
            holders.setdefault(box, []).append(rank)
    return holders


def first_holds(deployment: Deployment, rank: int, outputs: Iterable[int]) -> list[int]:
    """Returns the outputs, by position, whose pieces on a rank no rank before it has.

    Sizes may be open: pieces are the same where they are at all sizes.
    """

    def piece(holder: int, at: int) -> tuple[tuple[BoxDim, ...], ...]:
        port = ports_of(deployment.program_of(holder), "outputs")[at]
        return port_at(port, deployment.coords_of(holder)).box

    return [
        at for at in outputs if all(piece(before, at) != piece(rank, at) for before in range(rank))
    ]


def write_piece(whole: Tensor, port: Port, piece: Tensor) -> None:
    """Writes a rank's piece of an output, or of a part of one, into its global tensor.

    Args:
        whole: That, with its parts.
        port: The output at the rank, whose sizes are numbers.
        piece: What the rank has.
    """
    if port.part is None and holds_all(port):
        whole.copy_(piece)
        return
    box = port_box(port, {})
    if not is_empty(box):
        place(narrowed(whole, region_of(port)), piece, box)


def _receive(box: Box, mine: Tensor, owner: int) -> Tensor:
    if owner == 0:
        return mine
    return received_from(owner, mine.new_empty(box_shape(box)))
