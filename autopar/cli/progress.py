"""Progress: how far a search is, once it takes longer than one would wait.

On a terminal that is shown as long as it takes; elsewhere, as in a log, it is said once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from autopar.base.units import human_seconds
from autopar.cli.console import status

if TYPE_CHECKING:
    from rich.status import Status

    from autopar.completion.search.watch import Progress

PATIENCE_SECONDS = 1.0
"""Before that nothing but what the command does is shown."""

BESIDE = 3
"""Columns that a line on a terminal can't have."""

LOG_SECONDS = 10.0
"""The same where standard error is no terminal."""


@contextmanager
def progress(text: str, hidden: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Shows what a command is busy with, and yields what shows how far a search is.

    Args:
        text: What the command does.
        hidden: Whether to show nothing, since something else is.
    """
    shown: list[Status] = []
    line = text
    is_terminal = sys.stderr.isatty()

    def tell(now: Progress) -> None:
        nonlocal line
        line = described(now)
        for each in shown:
            each.update(cropped(line, each.console.width))

    def show() -> None:
        if not is_terminal:
            click.echo(f"{line}; --time-limit SECONDS ends a search early", err=True)
            return
        shown.append(_status(line))
        shown[0].start()

    # A step of a search may take long, so that it is not the search that looks at the clock.
    timer = threading.Timer(PATIENCE_SECONDS if is_terminal else LOG_SECONDS, show)
    timer.daemon = True
    if not hidden:
        timer.start()
    try:
        with status(text, hidden):
            yield tell
    finally:
        timer.cancel()
        if not hidden:
            timer.join()
        for each in shown:
            each.stop()


def _status(line: str) -> Status:
    from rich.console import Console
    from rich.status import Status

    console = Console(stderr=True)
    return Status(cropped(line, console.width), console=console)


def cropped(line: str, width: int) -> str:
    """Returns as much of a line as fits beside the sign that turns, on one line of a terminal."""
    room = max(width - BESIDE, 1)
    return line if len(line) <= room else f"{line[: room - 1]}…"


def described(now: Progress) -> str:
    """Returns how far a search is, in a line."""
    if now.seconds is None:
        return now.doing
    line = f"{now.doing}: {human_seconds(now.seconds, 4)} predicted"
    return f"{line}, at least {human_seconds(now.bound_seconds, 4)}" if now.bound_seconds else line
