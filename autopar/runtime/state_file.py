"""The state of ranks as safetensors files: whole tensors, gathered and written one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from autopar.runtime.kernels import TORCH_DTYPES
from autopar.runtime.replacing import replacing
from autopar.runtime.state import Piece, State
from autopar.runtime.weight_names import check_names
from autopar.runtime.weight_shards import SHARD_BYTES, write_folder
from autopar.runtime.weight_writing import Entry, write_order, write_tensors
from autopar.runtime.weights import WeightFile


def write_state(state: State, path: Path, max_shard_bytes: int | None = None) -> None:
    """Writes whole tensors to a file or a folder; all ranks call alike, and rank 0 writes.

    Args:
        state: The tensors.
        path: A file, or a folder where there is one.
        max_shard_bytes: Of a file in a folder; None for one file, if there is no folder.

    Raises:
        InvalidInputError: If the file or folder can't be written.
    """
    entries = {
        label: Entry(TORCH_DTYPES[entry.dtype], entry.shape)
        for label, entry in state.entries.items()
    }
    if 0 not in state.ranks.programs:
        for label in write_order(entries):
            state.whole(label, everywhere=False)
        return

    def gathered(label: str) -> Tensor:
        whole = state.whole(label, everywhere=False)
        assert whole is not None
        return whole

    if max_shard_bytes is not None or path.is_dir():
        write_folder(path, entries, gathered, max_shard_bytes or SHARD_BYTES)
        return
    with replacing(path) as beside:
        write_tensors(beside, entries, gathered)


class _Wanted(NamedTuple):
    """What a file must have of a tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def read_state(state: State, path: Path) -> None:
    """Takes over tensors from files, each rank its own pieces, if all of them fit.

    Raises:
        InvalidInputError: If the file can't be read, or lacks a tensor or has it otherwise.
    """
    with WeightFile(path) as file:
        found: dict[str, _Wanted] = {}
        check_names(file.given, [entry.names for entry in state.entries.values()])
        for label, entry in state.entries.items():
            name = state.name_in(label, file.entries) or label
            found[label] = _Wanted(name, TORCH_DTYPES[entry.dtype], entry.shape)
            file.expect(*found[label])
        # A number may be too large, which only who reads it can tell.
        for label, wanted in found.items():
            if file.entries[wanted.name].dtype != wanted.dtype:
                _pieces_in(file, state, label, wanted)
        # All fit, so the state isn't left half of what it was.
        for label, wanted in found.items():
            for piece, read in _pieces_in(file, state, label, wanted):
                piece.tensor.copy_(read)


def _pieces_in(
    file: WeightFile, state: State, label: str, wanted: _Wanted
) -> list[tuple[Piece, Tensor]]:
    """Returns this process's pieces of a tensor, and what a file has of them."""
    return [
        (piece, file.read(*wanted, piece.box, region=piece.part))
        for piece in state.all_pieces(label)
    ]
