"""Reads all files of checkpoints and compares them with what was written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from autopar.runtime.checkpoint.foreign import metadata_damage
from autopar.runtime.checkpoint.index import INDEX, DamagedCheckpoint, Index, StoredPiece
from autopar.runtime.checkpoint.pieces import opened_file
from autopar.runtime.checkpoint.series import holds_checkpoint, members
from autopar.runtime.files.digest import growing_digest

_BLOCK = 1 << 22


class Checked(NamedTuple):
    """What was compared with what was written.

    Attributes:
        pieces: Number of pieces of tensors.
        bytes: Of those.
        undigested: How many of the pieces have no digests: they could only be read.
    """

    pieces: int
    bytes: int
    undigested: int


def checkpoints_in(folder: Path) -> list[Path]:
    """Returns a folder that is a checkpoint, or the checkpoints in it; none if it is neither."""
    return [folder] if holds_checkpoint(folder) else members(folder)


def check_checkpoint(folder: Path) -> Checked:
    """Compares all pieces of a checkpoint with their digests, and all files with their lengths.

    Raises:
        DamagedCheckpoint: If some are damaged. Names all files, and a tensor in each.
        InvalidInputError: If there is no checkpoint.
    """
    # Here, since it takes torch.distributed.checkpoint a second to load.
    from autopar.runtime.checkpoint.checkpoint import open_checkpoint

    index = open_checkpoint(folder)
    pieces = _pieces(index)
    names = sorted({*index.files, *pieces})
    found = [_damage(folder, index, name, pieces.get(name, {})) for name in names]
    if (folder / INDEX).is_file():
        found.append(metadata_damage(folder, index))
    if damages := [damage for damage in found if damage]:
        raise DamagedCheckpoint("\n".join(damages))
    every = list(itertools.chain(*pieces.values()))
    size = sum(piece.slice.length for piece in every)
    return Checked(len(every), size, sum(not piece.slice.digest for piece in every))


def _pieces(index: Index) -> dict[str, dict[StoredPiece, str]]:
    """Returns the pieces in each file, and of which tensors they are."""
    found: dict[str, dict[StoredPiece, str]] = {}
    for name, tensor in index.tensors.items():
        for piece in tensor.pieces:
            found.setdefault(piece.slice.file, {}).setdefault(piece, name)
    return found


def _damage(folder: Path, index: Index, file: str, pieces: dict[StoredPiece, str]) -> str:
    """Returns how a file is damaged; an empty text if it isn't."""
    try:
        for name, digest, piece in _digested(folder, index, file, pieces):
            if piece.slice.digest and digest != piece.slice.digest:
                return f"{folder / file}: {name!r} isn't what was saved (its digest differs)"
    except DamagedCheckpoint as error:
        return str(error)
    return ""


def _digested(
    folder: Path, index: Index, file: str, pieces: dict[StoredPiece, str]
) -> Iterator[tuple[str, str, StoredPiece]]:
    """Yields each piece of a file with the name of its tensor, and the digest of what is there."""
    room = memoryview(bytearray(_BLOCK))
    ordered = sorted(pieces.items(), key=lambda each: each[0].slice.offset)
    first = ordered[0][1] if ordered else "plain values"
    with opened_file(folder / file, index.files.get(file), first) as opened:
        for piece, name in ordered:
            digest, place = growing_digest(), piece.slice
            for at in range(0, place.length, _BLOCK):
                part = room[: min(_BLOCK, place.length - at)]
                opened.fill(place.offset + at, part, name, digest)
            yield name, digest.hexdigest(), piece
