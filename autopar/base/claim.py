"""Tells a folder or file that somebody is filling from one that a dead process left.

Who fills it holds a lock on it, which the system drops when the process ends, however it ends. Some
file systems, as NFS, lock no folders. So its name says which process of which host it is of, and
there a process of this host that is gone counts as dead.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def owned_name(number: int) -> str:
    """Returns the part of a folder's name that says who fills it.

    Args:
        number: This thread's, or another one if that name is taken.
    """
    return f"{number}-{os.uname().nodename}"


@contextmanager
def claimed(make: Callable[[], Path]) -> Iterator[Path]:
    """Makes a folder, or a file, and holds it for as long as the block runs.

    Args:
        make: Makes it. It is called again if somebody took the first one for a dead process's
            before it was held.
    """
    while True:
        path = make()
        descriptor = _held(path)
        if descriptor is not None:
            break
    try:
        yield path
    finally:
        os.close(descriptor)


@contextmanager
def claimed_folder(prefix: Path, mode: int = 0o777) -> Iterator[Path]:
    """Makes a folder whose path begins so, claimed as long as it is in use, and removes it after.

    Args:
        prefix: How its path begins.
        mode: Who may do what with it.
    """

    def make() -> Path:
        # Threads may fill the same place: a name that one has left must not be the next one's.
        for number in itertools.count(threading.get_native_id()):
            folder = prefix.with_name(f"{prefix.name}{owned_name(number)}")
            with suppress(FileExistsError):
                folder.mkdir(mode=mode)
                return folder
        raise AssertionError("there is no end to numbers")

    with claimed(make) as folder:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _held(path: Path) -> int | None:
    """Locks what is at a path; None if it is gone by then."""
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # Without locks, its name has to do.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return None


def remove_abandoned(path: Path, owner: str) -> None:
    """Removes a folder or file, unless somebody fills it; as far as that can be done.

    Args:
        path: The folder or file.
        owner: What `owned_name` gave for it.
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            # Who is about to hold it waits for the lock, and then sees that it is gone. What was
            # held until now may have been moved, and be another one's by that name.
            if _is_free(descriptor, owner) and _is_at(descriptor, path):
                _remove(path)
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(descriptor), path.stat())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_free(descriptor: int, owner: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return _is_dead(owner)


def _is_dead(owner: str) -> bool:
    """Returns whether a process is one of this host that is gone."""
    number, _, host = owner.partition("-")
    if host != os.uname().nodename or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
