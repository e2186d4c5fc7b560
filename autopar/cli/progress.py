"""Progress: on a terminal, how far a search is, once it takes longer than one would wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autopar.cli.console import status
from autopar.ir.units import human_seconds

if TYPE_CHECKING:
    from rich.status import Status

    from autopar.completion.search.watch import Progress

PATIENCE_SECONDS = 1.0
"""Before that nothing but what the command does is shown."""


@contextmanager
def progress(text: str, hidden: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Shows what a command is busy with, and yields what shows how far a search is.

    Nothing is shown where standard error is no terminal.

    Args:
        text: What the command does.
        hidden: Whether to show nothing, since something else is.
    """
    shown: list[Status] = []
    start = time.monotonic()
    silent = hidden or not sys.stderr.isatty()

    def tell(now: Progress) -> None:
        if silent or time.monotonic() - start < PATIENCE_SECONDS:
            return
        line = described(now)
        if shown:
            shown[0].update(line)
            return
        shown.append(_status(line))
        shown[0].start()

    try:
        with status(text, hidden):
            yield tell
    finally:
        for each in shown:
            each.stop()


def _status(line: str) -> Status:
    from rich.console import Console
    from rich.status import Status

    return Status(line, console=Console(stderr=True))


def described(now: Progress) -> str:
    """Returns how far a search is, in a line."""
    if now.seconds is None:
        return now.doing
    line = f"{now.doing}: {human_seconds(now.seconds, 4)} predicted"
    return f"{line}, at least {human_seconds(now.bound_seconds, 4)}" if now.bound_seconds else line
