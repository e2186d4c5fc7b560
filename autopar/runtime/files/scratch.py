"""Folders for what processes hand one another, of which none is left for long.

Who is killed can't remove its folder. The next one who needs a folder does.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autopar.base.claim import claimed_folder, remove_abandoned

PREFIX = "autopar-run-"

AGE = 60.0
"""Seconds after which a folder that nobody holds has been left: a new one isn't held at once."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a folder that only this user can read, and removes it afterwards.

    Removes those too that processes left that were killed.
    """
    place = Path(tempfile.gettempdir())
    _clean_up(place)
    with claimed_folder(place / PREFIX, mode=0o700) as folder:
        yield folder


def _clean_up(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            old = time.time() - found.st_mtime > AGE and found.st_uid == os.getuid()
            if old:
                remove_abandoned(folder, folder.name.removeprefix(PREFIX))
