"""Tells a folder or file that somebody is filling from one that a dead process left.

Who fills it holds a lock on it, which the system drops when the process ends, however it ends. Some
file systems, as NFS, lock no folders. So its name says which process of which host it is of, and
there a process of this host that is gone counts as dead.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def owned_name(number: int) -> str:
    """Returns the part of a folder's name that says who fills it.

    Args:
        number: This process's, or another one if that name is taken.
    """
    return f"{number}-{os.uname().nodename}"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Holds a folder, or a file, for as long as the block runs."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Without locks, its name has to do.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_abandoned(folder: Path, owner: str) -> bool:
    """Returns whether nobody fills a folder.

    Args:
        folder: The folder.
        owner: What `owned_name` gave for it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return _is_dead(owner)
    finally:
        os.close(descriptor)


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
