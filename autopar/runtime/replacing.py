"""Files that appear when they are complete; until then an older one stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autopar.ir.errors import InvalidInputError, os_reason


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path, with the same suffix, of a file that then takes the place of another one.

    Raises:
        InvalidInputError: If it can't be written.
    """
    beside = path.with_name(f".{path.stem}.new-{os.getpid()}{path.suffix}")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        raise InvalidInputError(f"can't write {path}: {os_reason(error)}") from error
    finally:
        beside.unlink(missing_ok=True)
