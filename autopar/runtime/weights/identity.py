"""What files of weights are, in a few bytes: ranks that were given other files say other things."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from autopar.base.errors import InvalidInputError
from autopar.runtime.files.digest import digest_bytes
from autopar.runtime.weights.sources import sources_of

PLACES = 256
"""Of a file, at equal distances, that are looked at."""

PIECE = 1 << 12
"""Bytes that are read at each place."""


def identity_of(weights: Sequence[str | os.PathLike[str]]) -> str:
    """Returns a digest of files of weights, of which samples are read; "none" without any.

    Args:
        weights: As `weight_paths` returns them. Their names and folders don't count.

    Raises:
        InvalidInputError: If one can't be read.
    """
    found = [source.path for given in weights for source in sources_of(given)]
    if not found:
        return "none"
    return f"{digest_bytes(*(piece for path in found for piece in _pieces(path))):016x}"


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            yield size.to_bytes(8, "little")
            for at in range(PLACES):
                file.seek(at * size // PLACES)
                yield file.read(PIECE)
    except OSError as error:
        raise InvalidInputError(f"can't read {path}: {error.strerror}") from error
