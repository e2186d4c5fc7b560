"""Writes a folder as a whole: it appears complete at its place, or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from autopar.base.claim import claimed_folder, remove_abandoned
from autopar.base.errors import InvalidInputError, os_reason

Result = TypeVar("Result")

ADVICE = "choose another folder with -o"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def replace_folder(
    path: Path,
    fill: Callable[[Path], Result],
    check: Callable[[Path], None],
    advice: str = ADVICE,
) -> Result:
    """Fills a new folder and puts it at `path`, in place of the folder that is there.

    The new folder is made beside its final place, in `.NAME.new-*`, and synchronized with the
    disk before it is moved. What an interrupted call left there is removed by the next one.

    Args:
        path: Where the folder shall be. Missing folders above it are made.
        fill: Writes the files into the folder that it is given, and synchronizes each of them.
        check: Raises if the folder that is there must not be replaced.
        advice: What errors tell the user to do.

    Returns:
        What `fill` returned.

    Raises:
        InvalidInputError: If `check` does, or the folder can't be written.
    """
    # Symbolic links are followed: the folder behind them is replaced, not the link.
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clean_up(target)
        _check_target(target, check, advice)
        with claimed_folder(_beside(target)) as folder:
            result = fill(folder)
            _sync_folders(folder)
            _swap(folder, target)
            _sync_folder(target.parent)
        return result
    except OSError as error:
        raise _cannot_write(path, error, advice) from error


def remove_folder(path: Path) -> None:
    """Removes a folder at once; what is left of it if that is interrupted, the next write removes.

    Raises:
        OSError: If it can't be removed.
    """
    target = Path(os.path.realpath(path))
    with claimed_folder(_beside(target)) as hidden:
        target.rename(hidden / target.name)


def recover_folder(path: Path) -> None:
    """Completes or removes what interrupted calls left at a place, where that can be written."""
    target = Path(os.path.realpath(path))
    with suppress(OSError):
        _clean_up(target)


def check_place(path: Path, check: Callable[[Path], None]) -> None:
    """Raises what `replace_folder` would, as far as that can be told before there is a folder.

    Raises:
        InvalidInputError: If `check` does, or no folder can be made there.
    """
    target = Path(os.path.realpath(path))
    try:
        _check_target(target, check, ADVICE)
        above = next(folder for folder in target.parents if folder.exists())
        with claimed_folder(_beside(above / target.name)):
            pass
    except OSError as error:
        raise _cannot_write(path, error, ADVICE) from error


def sync_file(path: Path) -> None:
    """Waits until a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _cannot_write(path: Path, error: OSError, advice: str) -> InvalidInputError:
    # The system names a folder that was to be made; what the user knows is the one above it.
    above = Path(os.path.realpath(path)).parent
    while not above.exists():
        above = above.parent
    why = f"{os_reason(error)} (in {above})" if above.is_dir() else f"{above} is a file"
    if isinstance(error, FileNotFoundError):
        why = f"no folder can be made in {above}"
    return InvalidInputError(f"can't write {path}: {why}; {advice}")


def _check_target(target: Path, check: Callable[[Path], None], advice: str) -> None:
    if target.is_dir():
        check(target)
    elif target.exists():
        raise InvalidInputError(f"{target} is not a folder; {advice}")


def _prefix(target: Path) -> str:
    return f".{target.name}.new-"


def _beside(target: Path) -> Path:
    """Returns how the paths of new folders for a target begin."""
    return target.parent / _prefix(target)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def _clean_up(target: Path) -> None:
    """Removes what interrupted calls left, and completes a swap that was interrupted."""
    old = _old(target)
    if old.is_dir():
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)
    prefix = _prefix(target)
    for folder in target.parent.iterdir():
        name = folder.name
        if name.startswith(prefix):
            remove_abandoned(folder, name.removeprefix(prefix))


def _swap(folder: Path, target: Path) -> None:
    """Puts the folder at the target; what was there is where the folder was, or removed."""
    while not _moved(folder, target):
        try:
            if _exchange(folder, target):
                return
        except FileNotFoundError:
            # Somebody else has just removed what was there.
            continue
        # For a moment there is no target, but its content is whole beside it.
        old = _old(target)
        target.rename(old)
        folder.rename(target)
        shutil.rmtree(old)
        return


def _moved(folder: Path, target: Path) -> bool:
    """Moves the folder to the target, unless there is one that isn't empty."""
    try:
        folder.rename(target)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two paths in one step; False where the system can't."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    done = rename(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _sync_folders(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
