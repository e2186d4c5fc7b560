"""Processes of this host that the same launcher started.

A process that was stopped can't end itself, nor does it see a launcher's polite request to; only
a signal that it can't ignore ends it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path

from autopar.runtime.beats import Beat

ENDED = "ZX"
"""The states of a process that has ended, but for its parent's asking how."""

STOPPED = "T"
"""The state of a process that was stopped by a signal; a debugger's is another one."""


@cache
def system() -> str:
    """Returns what tells this system, with its numbers of processes, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def end_if_stopped(beat: Beat | None) -> None:
    """Ends a process that doesn't answer, if it is a stopped one that our parent started."""
    if beat is not None and _is_sibling(beat) and _state(beat) == STOPPED:
        with suppress(OSError):
            os.kill(beat.pid, signal.SIGKILL)


def is_gone(beat: Beat) -> bool:
    """Returns whether a process that our parent started is known to have ended."""
    return _is_sibling(beat) and _state(beat) in ("", *ENDED)


def _is_sibling(beat: Beat) -> bool:
    return bool(beat.host) and (beat.host, beat.parent) == (system(), os.getppid())


def _state(beat: Beat) -> str:
    """Returns the state of a sibling; "" if there is none of that number any more."""
    try:
        # The name, which is in parentheses, may have blanks.
        words = Path(f"/proc/{beat.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return words[0] if int(words[1]) == beat.parent else ""
