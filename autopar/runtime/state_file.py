"""The state of ranks as safetensors files: whole tensors, gathered and written one at a time."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from autopar.runtime.kernels import TORCH_DTYPES
from autopar.runtime.replacing import replacing
from autopar.runtime.state import State
from autopar.runtime.weight_shards import SHARD_BYTES, write_folder
from autopar.runtime.weight_taking import Part, Wanted, take_weights
from autopar.runtime.weight_writing import Entry, write_order, write_tensors


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


def read_state(state: State, path: Path) -> None:
    """Takes over tensors from files, each rank its own pieces, if all of them fit.

    Raises:
        InvalidInputError: If the file can't be read, or lacks a tensor or has it otherwise.
    """
    take_weights(path, [_wanted(state, label) for label in state.entries])


def _wanted(state: State, label: str) -> Wanted:
    entry = state.entries[label]
    parts = [Part(each.tensor, each.box, each.part) for each in state.all_pieces(label)]
    return Wanted(entry.names, TORCH_DTYPES[entry.dtype], entry.shape, parts)
