"""Files that appear when they are complete; until then an older one stays."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from autopar.ir.errors import InvalidInputError, os_reason


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path, with the same suffix, of a file that then takes the place of another one.

    What a killed process left of such a file is removed.

    Raises:
        InvalidInputError: If it can't be written.
    """
    prefix = f".{path.stem}.new-"
    beside: Path | None = None
    try:
        for other in path.parent.iterdir():
            if other.name.startswith(prefix) and other.suffix == path.suffix:
                _remove_if_abandoned(other)
        with _new_file(path, prefix) as held:
            # The lock tells a file that is being written from one that a dead process left.
            fcntl.flock(held, fcntl.LOCK_EX)
            beside = Path(held.name)
            yield beside
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"can't write {path}: {os_reason(error)}") from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def _new_file(path: Path, prefix: str) -> IO[bytes]:
    number = os.getpid()
    while True:
        try:
            return path.with_name(f"{prefix}{number}{path.suffix}").open("xb")
        except FileExistsError:
            number += 1


def _remove_if_abandoned(left: Path) -> None:
    with left.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        left.unlink(missing_ok=True)
