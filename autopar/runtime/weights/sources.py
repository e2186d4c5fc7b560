"""What may be given as weights: a safetensors file, or a folder of Hugging Face's with several.

model.safetensors                     all of them, or
model-00001-of-00002.safetensors      some of them, of which an index says who has which:
model.safetensors.index.json          {"weight_map": {"up.weight": "model-00001-of-00002..."}}
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from autopar.base.errors import InvalidInputError, os_reason

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

SHARD = re.compile(r".*-\d{5}-of-\d{5}\.safetensors")
"""A file that has only some of the weights."""

MAX_INDEX_BYTES = 1 << 28
"""Longer than the index of any model."""

_OTHERS: Mapping[bytes, str] = {
    b"GGUF": "a GGUF file",
    b"PK\x03\x04": "an archive, as torch.save writes, which can run code when it is opened",
    b"\x80\x02": "a pickle, as torch.save wrote, which can run code when it is opened",
    b"\x89HDF": "an HDF5 file",
}
"""What other files of weights start with."""

_CONVERT = (
    "load it in the library that wrote it, as torch.load(..., weights_only=True) does, and write"
    " what it holds with safetensors.torch.save_file"
)


class Source(NamedTuple):
    """A safetensors file with weights.

    Attributes:
        path: The file.
        names: The tensors that an index says it has.
    """

    path: Path
    names: tuple[str, ...] = ()


def sources_of(given: str | os.PathLike[str]) -> list[Source]:
    """Returns the safetensors files that a file, an index or a folder stands for.

    Raises:
        InvalidInputError: If there is none, or it is of another kind.
    """
    path = Path(given)
    if path.is_dir():
        path = _in_folder(path)
    if path.suffix == ".json":
        return _shards(path)
    check_regular(path, "weights from")
    _check_kind(path)
    return [Source(path)]


def check_regular(path: Path, what: str) -> None:
    """Refuses what is no file that can be read, without opening it: a pipe would wait for ever.

    Args:
        path: The file.
        what: What errors call it, as `input`, or `weights from`.

    Raises:
        InvalidInputError: If it isn't there, is a folder, a pipe or a device, or unreadable.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else error
        raise InvalidInputError(f"can't read {what} {path}: {reason}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InvalidInputError(f"can't read {what} {path}: it is {kind}; give a file")
    if not os.access(path, os.R_OK):
        raise InvalidInputError(f"can't read {what} {path}: it isn't readable for this user")


def _in_folder(folder: Path) -> Path:
    """Returns the file or index of a folder that counts, as Hugging Face's libraries choose it."""
    for name in (WHOLE, INDEX):
        if (folder / name).exists():
            return folder / name
    found = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.safetensors"))
    if len(found) == 1 and not SHARD.fullmatch(found[0].name):
        return found[0]
    if parts := [path.name for path in found if SHARD.fullmatch(path.name)]:
        raise InvalidInputError(
            f"can't read weights from {folder}: it has {parts[0]}, but no {INDEX}, so that what"
            " should be there isn't known; copy the whole folder again, or name all files"
        )
    if found:
        names = ", ".join(path.name for path in found[:3])
        raise InvalidInputError(
            f"can't read weights from {folder}: it has neither {WHOLE} nor {INDEX}, but {names};"
            " name the files that count"
        )
    raise InvalidInputError(f"can't read weights from {folder}: {_why_not(folder)}")


def _why_not(folder: Path) -> str:
    if (folder / ".metadata").exists():
        return "it is a checkpoint; open the trainer and call its load_checkpoint"
    if pickles := sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*")):
        return (
            f"it has no safetensors file, but {pickles[0].name}, whose format can run code when it"
            f" is opened; {_CONVERT}, or save_pretrained the model again"
        )
    if ggufs := sorted(folder.glob("*.gguf")):
        return f"it has no safetensors file, but {ggufs[0].name}; {_CONVERT}"
    return f"it has no {WHOLE}, no {INDEX} and no other safetensors file"


def _check_kind(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(4)
    for magic, kind in _OTHERS.items():
        # The length of a header of safetensors may start alike, but has no further bytes.
        if start.startswith(magic) and start[2:] != b"\0\0":
            raise InvalidInputError(f"can't read weights from {path}: it is {kind}; {_CONVERT}")


def _shards(index: Path) -> list[Source]:
    weight_map = _weight_map(index)
    names: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        names.setdefault(shard, []).append(name)
    found = {shard: index.parent / shard for shard in sorted(names)}
    if missing := [shard for shard, path in found.items() if not path.exists()]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InvalidInputError(
            f"can't read weights from {index}: it names {', '.join(missing[:3])}{more}, which"
            f" {'is' if len(missing) == 1 else 'are'} not in {index.parent}; copy the whole folder"
            " again"
        )
    for path in found.values():
        check_regular(path, "weights from")
    return [Source(path, tuple(names[shard])) for shard, path in found.items()]


def _weight_map(index: Path) -> Mapping[str, str]:
    check_regular(index, "weights from")
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise InvalidInputError(f"{index} is too long for an index of weights")
    try:
        content = json.loads(index.read_bytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{index} is no index of weights: {error}") from error
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found:
        raise InvalidInputError(
            f"{index} is no index of weights: it has no weight_map, from tensors to files"
        )
    for name, shard in found.items():
        if not isinstance(shard, str) or not _is_inside(shard):
            raise InvalidInputError(
                f"{index}: weight_map says that {name!r} is in {shard!r}, which is no file beside"
                " the index"
            )
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def _is_inside(shard: str) -> bool:
    parts = PurePosixPath(shard)
    plain = shard.endswith(".safetensors") and "\0" not in shard and "\\" not in shard
    return plain and not parts.is_absolute() and ".." not in parts.parts
