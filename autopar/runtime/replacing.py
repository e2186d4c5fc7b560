"""Files that appear when they are complete; until then an older one stays."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autopar.ir.errors import InvalidInputError, os_reason


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path, with the same suffix, of a file that then takes the place of another one.

    What a killed process left of such a file is removed.

    Raises:
        InvalidInputError: If it can't be written.
    """
    prefix = f".{path.stem}.new-"
    beside = path.with_name(f"{prefix}{os.getpid()}{path.suffix}")
    try:
        for other in path.parent.iterdir():
            if other.name.startswith(prefix) and other.suffix == path.suffix:
                _remove_if_abandoned(other)
        with beside.open("wb") as held:
            # The lock tells a file that is being written from one that a dead process left.
            fcntl.flock(held, fcntl.LOCK_EX)
            yield beside
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"can't write {path}: {os_reason(error)}") from error
    finally:
        beside.unlink(missing_ok=True)


def _remove_if_abandoned(left: Path) -> None:
    with left.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        left.unlink(missing_ok=True)
