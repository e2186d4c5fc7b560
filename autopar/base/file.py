"""Single files that a command writes: whole at any time, and refused before the work if need be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from autopar.base.errors import InvalidInputError, os_reason

STDOUT = "-"
"""The path that stands for standard output."""


def is_stdout(path: str | Path | None) -> bool:
    """Whether a path stands for standard output, where nothing else is to be written then."""
    return path is not None and str(path) == STDOUT


def check_file(path: str | Path) -> None:
    """Refuses a place for a file before the work of making one.

    Raises:
        InvalidInputError: If no file can be written there.
    """
    if is_stdout(path):
        return
    target = Path(os.path.realpath(path))
    try:
        if _is_special(target):
            return
        beside = _beside(target)
        beside.touch(exist_ok=False)
        beside.unlink()
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_file(path: str | Path, parts: Iterable[str]) -> None:
    """Writes a text file; an older one there stays whole until the new one is complete.

    Args:
        path: The file; `-` for standard output; or something to write to, as a named pipe.
        parts: The text, in parts.

    Raises:
        InvalidInputError: If it can't be written.
    """
    if is_stdout(path):
        # A reader that ends early, as `| head` does, is the caller's to handle.
        sys.stdout.writelines(parts)
        return
    target = Path(os.path.realpath(path))
    try:
        if _is_special(target):
            with target.open("w", encoding="utf-8") as file:
                file.writelines(parts)
            return
        beside = _beside(target)
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.writelines(parts)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _is_special(target: Path) -> bool:
    """Whether a place is a device or a pipe.

    Raises:
        IsADirectoryError: If it is a folder.
    """
    if target.is_dir():
        raise IsADirectoryError("it is a folder")
    return target.exists() and not target.is_file()


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}")


def _cannot_write(path: str | Path, error: OSError) -> InvalidInputError:
    missing = isinstance(error, FileNotFoundError) and not Path(path).parent.is_dir()
    why = f"there is no folder {Path(path).parent}" if missing else os_reason(error)
    return InvalidInputError(f"can't write {path}: {why}; choose another file")
