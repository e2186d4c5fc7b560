"""Checkpoints in the format of `torch.distributed.checkpoint`, complete or absent.

    model.NAME                       parameters and buffers, by the model's names
    optimizer.state.PARAMETER.NAME   the optimizer's state
    optimizer.param_groups.0.lr      what belongs to a group of parameters
    trainer.steps, trainer.seed      where the training is
    trainer.extra                    what the user has it keep

These are the keys that `get_state_dict` of `torch.distributed.checkpoint.state_dict` gives, so that
plain PyTorch reads these checkpoints, and its own can be read here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autopar.base.errors import InvalidInputError, RuntimeFailure, os_reason
from autopar.base.folder import replace_folder
from autopar.runtime.checkpoint.files import Rectangle, finish, write_rectangles
from autopar.runtime.checkpoint.foreign import METADATA, read_metadata
from autopar.runtime.checkpoint.index import INDEX, Index, read_index, read_whole
from autopar.runtime.checkpoint.owner import Owner
from autopar.runtime.checkpoint.reading import check_tensors, read_tensors, read_values
from autopar.runtime.checkpoint.series import Place, holds_checkpoint, is_series
from autopar.runtime.checkpoint.tasks import Target
from autopar.runtime.files.digest import digest_bytes
from autopar.runtime.job.messages import Messages
from autopar.runtime.state.state import Content, Held, Key, flat_key

_ADVICE = "choose another folder"
SHOWN = 60
"""Characters of plain values that a message shows."""


def write_checkpoint(
    place: Place,
    content: Content,
    rectangles: Sequence[Rectangle],
    messages: Messages,
    owner: Owner | None = None,
) -> None:
    """Writes a checkpoint; one that is there stays whole until the new one is complete.

    All processes call alike, with one file system, and all of them know how it ended.

    Args:
        place: Where.
        content: What it holds; of its pieces only `rectangles` are looked at.
        rectangles: What this process writes.
        messages: Connects the processes.
        owner: Holds the place from now on, on the first process; by default nobody does.

    Raises:
        InvalidInputError: If the folder can't be written, by any rank, is something else, or
            another job saves there.
        RuntimeFailure: If another process fails meanwhile.
    """
    if messages.first:
        _lead(place, content, rectangles, messages, owner or Owner())
        return
    if folder := messages.from_first():
        messages.to_first(_write_part(Path(folder), rectangles, messages))
    if problem := messages.from_first():
        raise InvalidInputError(problem)


def _lead(
    place: Place,
    content: Content,
    rectangles: Sequence[Rectangle],
    messages: Messages,
    owner: Owner,
) -> None:
    folders: list[Path] = []

    def fill(folder: Path) -> None:
        folders.append(folder)
        messages.from_first(str(folder))
        problems = messages.to_first(_write_part(folder, rectangles, messages))
        if found := [problem for problem in problems if problem]:
            raise InvalidInputError(f"can't write {place.path}: {found[0]}")
        finish(folder, content, messages.size, place.next_number())

    try:
        place.prepare()
        owner.hold(place.shared)
        replace_folder(place.path, fill, _check_replaceable, _ADVICE)
        owner.hold(place.shared)
        place.remove_older()
    except RuntimeFailure:
        # Another process failed, and hears nothing.
        raise
    except Exception as error:
        if not folders:
            messages.from_first("")
        messages.from_first(str(error) or type(error).__name__)
        raise
    messages.from_first("")


def _write_part(folder: Path, rectangles: Sequence[Rectangle], messages: Messages) -> str:
    """Writes what this process writes; returns what went wrong, "" if nothing did."""
    try:
        write_rectangles(folder, messages.rank, rectangles)
    except OSError as error:
        return f"rank {messages.rank}: {os_reason(error)} (in {folder.parent}); {_ADVICE}"
    except Exception as error:
        # Whatever it is, the others wait to hear of it.
        return f"rank {messages.rank}: {str(error) or type(error).__name__}"
    return ""


def _check_replaceable(folder: Path) -> None:
    if holds_checkpoint(folder) or not any(folder.iterdir()):
        return
    if is_series(folder):
        raise InvalidInputError(
            f"{folder} holds several checkpoints; give keep= to save another one beside them, or"
            " choose another folder"
        )
    raise InvalidInputError(
        f"{folder} is not empty and not a checkpoint; choose another folder, or delete it"
    )


def open_checkpoint(path: Path) -> Index:
    """Returns what a checkpoint holds.

    Raises:
        InvalidInputError: If there is no checkpoint.
        DamagedCheckpoint: If what says so is damaged.
    """
    if (path / INDEX).is_file():
        return read_index(path)
    if not (path / METADATA).is_file():
        hint = "; it is a folder of several, of which resume() takes the newest"
        raise InvalidInputError(
            f"{path} is no checkpoint: it has no {INDEX}, nor a {METADATA} of plain PyTorch"
            f"{hint if is_series(path) else ''}"
        )
    return read_metadata(path)


def index_digest(path: Path) -> str:
    """Returns what checkpoints differ in that have different content; copies of one don't.

    Raises:
        DamagedCheckpoint: If what says what it holds can't be read.
    """
    told = path / INDEX if (path / INDEX).is_file() else path / METADATA
    return f"{digest_bytes(read_whole(told)):x}" if told.is_file() else ""


def read_checkpoint(path: Path, index: Index, content: Content) -> dict[Key, Any]:
    """Reads tensors into the pieces of this process, and returns plain values.

    Args:
        path: The folder.
        index: What it holds.
        content: The pieces, which are overwritten, and the plain values, of which only the keys
            count. All of them are in the index.

    Raises:
        DamagedCheckpoint: If a file isn't what was saved. The pieces are then anything.
    """
    names = {flat_key(key): key for key in content.values}
    values = read_values(path, index, list(names))
    read_tensors(path, index, _wanted(index, content))
    return {names[name]: value for name, value in values.items()}


def compare_checkpoint(path: Path, index: Index, content: Content) -> None:
    """Compares with their digests the tensors that `read_checkpoint` would read; changes nothing.

    Args:
        path, index, content: See `read_checkpoint`.

    Raises:
        DamagedCheckpoint: If a file isn't what was saved.
    """
    read_values(path, index, [flat_key(key) for key in content.values])
    check_tensors(path, index, _wanted(index, content))


def _wanted(index: Index, content: Content) -> dict[str, list[Target]]:
    return {
        next(name for name in map(flat_key, held.keys) if name in index.tensors): read_targets(held)
        for held in content.tensors
    }


def read_targets(held: Held) -> list[Target]:
    """Returns the rectangles of a tensor that this process holds, each once."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Target] = {}
    for piece in held.pieces:
        for region in piece.regions():
            target = found.setdefault((region.offsets, region.sizes), Target(region))
            target.tensors.append(region.of(piece.tensor.detach()))
    return list(found.values())


def check_extra(extra: Any) -> None:
    """Refuses what the user has a checkpoint keep, if it would come back as something else.

    Raises:
        InvalidInputError: If it would.
    """
    try:
        same = json.loads(json.dumps(extra)) == extra
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(_not_plain(str(error))) from error
    if not same:
        raise InvalidInputError(_not_plain("it comes back from JSON as something else"))


def brief(extra: Any) -> str:
    """Returns a short text that is the same for the same plain values."""
    try:
        text = json.dumps(extra, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return type(extra).__name__
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({digest_bytes(text.encode()):016x})"


def _not_plain(why: str) -> str:
    return (
        f"extra= can't be kept in a checkpoint: {why}; give numbers, texts, lists, and dictionaries"
        " whose keys are texts"
    )
