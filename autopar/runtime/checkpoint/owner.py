"""Keeps two jobs from saving checkpoints into one place: each would take the other's for its own.

Who has saved there holds a lock on the folder until its trainer is closed; trainers of one process
share it. The system drops it when the process ends, however it ends. Some file systems, as NFS,
lock no folders: nothing is noticed there.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

from autopar.base.errors import InvalidInputError


class _Lock:
    """A lock on a folder, for as long as somebody refers to it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def is_on(self, descriptor: int) -> bool:
        return os.path.samestat(os.fstat(self.descriptor), os.fstat(descriptor))

    def leave(self) -> None:
        """Closes what a process has inherited that was forked off, as those that load data are."""
        os.close(self.descriptor)
        self.descriptor = -1

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Owner:
    """Who saves checkpoints: a trainer."""

    def __init__(self) -> None:
        self._locks: dict[str, _Lock] = {}

    def hold(self, folder: Path) -> None:
        """Holds a folder, if it is there, until `release`.

        Raises:
            InvalidInputError: If another process does.
        """
        place = os.path.realpath(folder)
        with suppress(OSError):
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            known = _locks().get(place)
            if known is not None and known.is_on(descriptor):
                os.close(descriptor)
            else:
                known = _locks()[place] = _Lock(descriptor)
                _lock(descriptor, folder)
            self._locks[place] = known

    def release(self) -> None:
        """Gives back what it holds."""
        self._locks.clear()


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInputError(
            f"another process that still runs has saved checkpoints in {folder}: two trainings"
            " there would remove each other's checkpoints, or go on from them; choose another"
            " folder, or end that process"
        ) from None


@cache
def _locks() -> WeakValueDictionary[str, _Lock]:
    """Returns the locks that this process holds, by folder: process-wide, as they are."""
    found: WeakValueDictionary[str, _Lock] = WeakValueDictionary()

    def leave() -> None:
        for lock in found.values():
            lock.leave()

    os.register_at_fork(after_in_child=leave)
    return found
