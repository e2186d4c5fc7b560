"""Files that appear when they are complete; until then an older one stays."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autopar.base.claim import claimed, owned_name, remove_abandoned
from autopar.base.errors import InvalidInputError, os_reason


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a path, with the same suffix, of a file that then takes the place of another one.

    What a killed process left of such a file is removed. A link stays, and what it points to is
    replaced; a device or a pipe is written to as it is.

    Raises:
        InvalidInputError: If it can't be written.
    """
    path = path.resolve()
    prefix = f".{path.stem}.new-"
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            yield path
            return
        for other in path.parent.iterdir():
            if other.name.startswith(prefix) and other.suffix == path.suffix:
                owner = other.name.removeprefix(prefix).removesuffix(path.suffix)
                remove_abandoned(other, owner)
        with claimed(lambda: _new_file(path, prefix)) as beside:
            try:
                yield beside
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidInputError(f"can't write {path}: {os_reason(error)}") from error


def _new_file(path: Path, prefix: str) -> Path:
    # Threads may fill the same place: a name that one has left must not be the next one's.
    for number in itertools.count(threading.get_native_id()):
        beside = path.with_name(f"{prefix}{owned_name(number)}{path.suffix}")
        with suppress(FileExistsError):
            beside.touch(exist_ok=False)
            return beside
    raise AssertionError("numbers end")
