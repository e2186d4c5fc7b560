"""Writes weights as a folder in Hugging Face's layout, tensor by tensor.

The index appears last, and what it names is whole by then. A folder that a killed process left has
no index, so that nobody takes it for a model; the next save there removes what is left.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from autopar.base.errors import InvalidInputError, os_reason
from autopar.base.folder import sync_file
from autopar.runtime.weights.sources import INDEX, SHARD, WHOLE
from autopar.runtime.weights.writing import Entry, write_order, write_tensors

SHARD_BYTES = 5_000_000_000
"""Largest size of a file, unless a tensor is larger by itself."""

_NEW = ".new"


def write_folder(
    folder: Path,
    entries: Mapping[str, Entry],
    tensor: Callable[[str], Tensor],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes tensors to `model.safetensors` in a folder, or to several files and their index.

    What else is in the folder stays there.

    Args:
        folder: The folder; it is made if it isn't there.
        entries: Their types by name.
        tensor: Returns a tensor by name; called once for each, in the order of `write_order`.
        shard_bytes: Largest size of the tensors of a file.

    Raises:
        InvalidInputError: If the folder can't be written, or a dtype can't be stored.
    """
    shards = _shards(entries, shard_bytes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            for name, part in shards.items():
                write_tensors(folder / (name + _NEW), part, tensor)
                sync_file(folder / (name + _NEW))
            _put(folder, shards)
    except OSError as error:
        raise InvalidInputError(f"can't write {folder}: {os_reason(error)}") from error


def _shards(entries: Mapping[str, Entry], shard_bytes: int) -> dict[str, dict[str, Entry]]:
    """Returns what each file is to hold, by its name."""
    parts: list[dict[str, Entry]] = [{}]
    size = 0
    for name in write_order(entries):
        length = math.prod(entries[name].shape) * entries[name].dtype.itemsize
        if size + length > shard_bytes and parts[-1]:
            parts.append({})
            size = 0
        parts[-1][name] = entries[name]
        size += length
    if len(parts) == 1:
        return {WHOLE: parts[0]}
    count = len(parts)
    return {
        f"model-{at:05}-of-{count:05}.safetensors": part for at, part in enumerate(parts, start=1)
    }


def _put(folder: Path, shards: Mapping[str, Mapping[str, Entry]]) -> None:
    """Puts new files at their places, so that at no time some are taken for all."""
    if WHOLE in shards:
        (folder / (WHOLE + _NEW)).replace(folder / WHOLE)
        (folder / INDEX).unlink(missing_ok=True)
    else:
        (folder / (INDEX + _NEW)).write_text(_index(shards))
        sync_file(folder / (INDEX + _NEW))
        for name in (INDEX, WHOLE):
            (folder / name).unlink(missing_ok=True)
        for name in (*shards, INDEX):
            (folder / (name + _NEW)).replace(folder / name)
    for path in folder.iterdir():
        if SHARD.fullmatch(path.name) and path.name not in shards:
            path.unlink()


def _index(shards: Mapping[str, Mapping[str, Entry]]) -> str:
    weight_map = {name: file for file, part in shards.items() for name in part}
    size = sum(
        math.prod(entry.shape) * entry.dtype.itemsize
        for part in shards.values()
        for entry in part.values()
    )
    content = {"metadata": {"total_size": size}, "weight_map": weight_map}
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing there, and removes what is not complete."""
    descriptor = _locked(folder)
    try:
        _remove_new(folder)
        try:
            yield
        finally:
            _remove_new(folder)
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """Locks what a path leads to, which may be replaced until it is locked; returns what it is."""
    while True:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _lock(descriptor, folder)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InvalidInputError(
            f"can't write {folder}: another process is writing weights there"
        ) from error
    except OSError:
        # Some file systems, as NFS, lock no folders. There it is up to the user.
        return


def _remove_new(folder: Path) -> None:
    for path in folder.iterdir():
        name = path.name.removesuffix(_NEW)
        if name != path.name and (name in (WHOLE, INDEX) or SHARD.fullmatch(name)):
            path.unlink()
