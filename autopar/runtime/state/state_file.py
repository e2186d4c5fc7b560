"""The state of ranks as safetensors files: whole tensors, gathered and written one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from autopar.base.arguments import PATH, expect
from autopar.base.errors import InvalidInputError
from autopar.runtime.execute.ranks import jointly
from autopar.runtime.files.atomic_write import atomic_write
from autopar.runtime.job.messages import Messages
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.state.state import State
from autopar.runtime.weights.shards import SHARD_BYTES, write_folder
from autopar.runtime.weights.taking import (
    Part,
    Wanted,
    expect_weights,
    sampled_contents,
    take_weights,
)
from autopar.runtime.weights.writing import Entry, write_order, write_tensors


def write_state(
    state: State, path: Path, messages: Messages, max_shard_bytes: int | None = None
) -> None:
    """Writes whole tensors to a file or a folder; all ranks call alike, and rank 0 writes.

    Args:
        state: The tensors.
        path: A file, or a folder where there is one.
        messages: Connects the processes.
        max_shard_bytes: Of a file in a folder; None for one file, if there is no folder.

    Raises:
        InvalidInputError: On all ranks, if the file or folder can't be written.
    """
    entries = {
        label: Entry(TORCH_DTYPES[entry.dtype], entry.shape)
        for label, entry in state.entries.items()
    }
    left = write_order(entries)

    def gathered(label: str) -> Tensor:
        left.remove(label)
        whole = state.whole(label, everywhere=False)
        assert whole is not None
        return whole

    problem = ""
    if messages.first:
        try:
            _write(path, entries, gathered, max_shard_bytes)
        except InvalidInputError as error:
            problem = str(error)
    # Also where rank 0 couldn't write: the others send all.
    for label in left:
        state.whole(label, everywhere=False)
    if problem := messages.from_first(problem):
        raise InvalidInputError(problem)


def _write(
    path: Path,
    entries: Mapping[str, Entry],
    gathered: Callable[[str], Tensor],
    max_shard_bytes: int | None,
) -> None:
    if max_shard_bytes is not None or path.is_dir():
        write_folder(path, entries, gathered, max_shard_bytes or SHARD_BYTES)
        return
    with atomic_write(path) as beside:
        write_tensors(beside, entries, gathered)


def read_state(
    state: State, path: str | Path, call: str, check: Callable[[], None] = lambda: None
) -> None:
    """Takes over tensors from files, each rank its own pieces, if all of them fit on all ranks.

    Args:
        state: The tensors.
        path: A file, or a folder of several.
        call: What messages call this.
        check: What else is to be right before it: called first.

    Raises:
        InvalidInputError: On all ranks, if a rank can't read the file, or it lacks a tensor or has
            it otherwise, or their files aren't the same, of which samples are compared. No tensor
            is changed then.
        RuntimeFailure: If a file can't be read any more, here or elsewhere.
    """
    wanted = [_wanted(state, label) for label in state.entries]

    def prepare() -> None:
        check()
        expect(PATH, path=path)
        expect_weights(path, wanted)

    jointly(state.ranks, call, prepare, lambda _: sampled_contents(path, wanted))
    with state.ranks.reported():
        take_weights(path, wanted)


def _wanted(state: State, label: str) -> Wanted:
    entry = state.entries[label]
    parts = [Part(each.tensor, each.box, each.part) for each in state.all_pieces(label)]
    return Wanted(entry.names, TORCH_DTYPES[entry.dtype], entry.shape, parts)
