"""Files that appear when they are complete; until then an older one stays."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autopar.ir.claim import claimed, is_abandoned, owned_name
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
                owner = other.name.removeprefix(prefix).removesuffix(path.suffix)
                if is_abandoned(other, owner):
                    other.unlink(missing_ok=True)
        beside = _new_file(path, prefix)
        with claimed(beside):
            yield beside
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"can't write {path}: {os_reason(error)}") from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def _new_file(path: Path, prefix: str) -> Path:
    for number in itertools.count(os.getpid()):
        beside = path.with_name(f"{prefix}{owned_name(number)}{path.suffix}")
        with suppress(FileExistsError):
            beside.touch(exist_ok=False)
            return beside
    raise AssertionError("numbers end")
