"""Checkpoints in the format of `torch.distributed.checkpoint`, complete or absent.

    model.NAME                       parameters and buffers, by the model's names
    optimizer.state.PARAMETER.NAME   the optimizer's state
    optimizer.param_groups.0.lr      what belongs to a group of parameters
    trainer.steps, trainer.seed      where the training is

These are the keys that `get_state_dict` of `torch.distributed.checkpoint.state_dict` gives, so that
plain PyTorch reads these checkpoints, and its own can be read here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from autopar.ir.errors import InvalidInputError, RuntimeFailure
from autopar.ir.folder import replace_folder
from autopar.runtime.checkpoint_plan import PieceLoader, PieceSaver
from autopar.runtime.state import Content, Key

METADATA = ".metadata"


def write_checkpoint(path: Path, content: Content, has_processes: bool) -> None:
    """Writes a checkpoint; one that is at `path` stays whole until the new one is complete.

    All processes call alike, with one file system.

    Args:
        path: The folder.
        content: What it is to hold.
        has_processes: Whether there are other processes.

    Raises:
        InvalidInputError: If the folder can't be written, or is something else than a checkpoint.
        RuntimeFailure: If a rank can't write its part.
    """
    told = _Telling(has_processes)
    if told.first:
        _lead_writing(path, content, told)
        return
    folder = told.hear()
    _write(Path(folder), content, has_processes)
    told.hear()


def _lead_writing(path: Path, content: Content, told: _Telling) -> None:
    def fill(folder: Path) -> None:
        told.tell(str(folder))
        _write(folder, content, told.has_processes)

    try:
        replace_folder(path, fill, _check_replaceable)
    except InvalidInputError as error:
        told.tell(error=str(error))
        raise
    told.tell("done")


class _Telling:
    """What the first process tells the others."""

    def __init__(self, has_processes: bool) -> None:
        self.has_processes = has_processes
        self.first = not has_processes or dist.get_rank() == 0

    def tell(self, word: str = "", error: str = "") -> None:
        """Tells a word, or an error."""
        if self.has_processes:
            dist.broadcast_object_list([word, error], 0)

    def hear(self) -> str:
        """Returns the word.

        Raises:
            InvalidInputError: If it is an error.
        """
        heard: list[str] = ["", ""]
        dist.broadcast_object_list(heard, 0)
        word, error = heard
        if error:
            raise InvalidInputError(error)
        return word


@contextmanager
def _alone(has_processes: bool) -> Iterator[None]:
    """Silences torch's remark that a process without others is one."""
    with warnings.catch_warnings():
        if not has_processes:
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _write(folder: Path, content: Content, has_processes: bool) -> None:
    try:
        with _alone(has_processes):
            save({}, checkpoint_id=folder, planner=PieceSaver(content), no_dist=not has_processes)
    except CheckpointException as error:
        raise RuntimeFailure(f"can't write the checkpoint: {_reason(error)}") from error


def _check_replaceable(folder: Path) -> None:
    if not (folder / METADATA).is_file() and any(folder.iterdir()):
        raise InvalidInputError(
            f"{folder} is not empty and not a checkpoint; choose another folder, or delete it"
        )


def read_entries(path: Path) -> dict[str, tuple[int, ...] | None]:
    """Returns the entries of a checkpoint: the shapes of tensors, None for plain values.

    Raises:
        InvalidInputError: If there is no checkpoint.
    """
    if not (path / METADATA).is_file():
        raise InvalidInputError(f"{path} is no checkpoint: it has no {METADATA}")
    found = FileSystemReader(path).read_metadata().state_dict_metadata
    return {
        key: tuple(entry.size) if isinstance(entry, TensorStorageMetadata) else None
        for key, entry in found.items()
    }


def read_checkpoint(path: Path, content: Content, has_processes: bool) -> dict[Key, Any]:
    """Reads tensors into the pieces of the ranks of this process, and returns plain values.

    Args:
        path: The folder.
        content: The pieces, which are overwritten, and the plain values, of which only the keys
            count.
        has_processes: Whether there are other processes.

    Raises:
        RuntimeFailure: If a rank can't read its part.
    """
    loader = PieceLoader(content)
    try:
        with _alone(has_processes):
            load({}, checkpoint_id=path, planner=loader, no_dist=not has_processes)
    except CheckpointException as error:
        raise RuntimeFailure(f"can't read the checkpoint {path}: {_reason(error)}") from error
    return loader.values


def _reason(error: CheckpointException) -> str:
    """Returns what went wrong on the first rank that failed."""
    failures = error.failures
    if not failures:
        return str(error)
    rank = min(failures)
    return f"rank {rank}: {failures[rank][0]}"
