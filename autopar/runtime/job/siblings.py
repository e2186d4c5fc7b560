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

from autopar.runtime.failure.beats import Beat

PROCESSES = Path("/proc")

ENDED = "ZX"
"""The states of a process that has ended, but for its parent's asking how."""

STOPPED = "T"
"""The state of a process that was stopped by a signal; a debugger's is another one."""


@cache
def system() -> str:
    """Returns what tells this system, with its numbers of processes, from others."""
    try:
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROCESSES / 'self/ns/pid')}"
    except OSError:
        return ""


def end_if_stopped(rank: int, beat: Beat | None) -> None:
    """Ends a process that doesn't answer, if it is a stopped one that our parent started.

    Args:
        rank: Its rank.
        beat: What it said last; None if that isn't known.
    """
    known = beat is not None and _is_sibling(beat)
    numbers = [beat.pid] if beat is not None and known else _siblings_of_rank(rank)
    for number in numbers:
        if _state(number) == STOPPED:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)


def is_here(beat: Beat) -> bool:
    """Returns whether a process is one of this system, which knows whether it has ended."""
    return bool(beat.host) and beat.host == system()


def lives(beat: Beat) -> bool:
    """Returns whether a process is known to live."""
    return is_here(beat) and not is_gone(beat)


def is_gone(beat: Beat) -> bool:
    """Returns whether a process is known to have ended."""
    if not is_here(beat):
        return False
    # Its number may be another process's by now.
    parent = _status(beat.pid)[1]
    return has_ended(beat.pid) or (_is_sibling(beat) and parent != os.getppid())


def has_ended(number: int) -> bool:
    """Returns whether no process of this system has this number, or one that has ended."""
    return _status(number)[0] in ("", *ENDED)


def _is_sibling(beat: Beat) -> bool:
    return is_here(beat) and beat.parent == os.getppid()


def _state(number: int) -> str:
    """Returns the state of a process; "" if our parent has no such child any more."""
    state, parent = _status(number)
    return state if parent == os.getppid() else ""


def _status(number: int) -> tuple[str, int]:
    """Returns the state of a process of this system, and its parent; "" if there is none."""
    try:
        # The name, which is in parentheses, may have blanks.
        words = (PROCESSES / f"{number}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    except OSError:
        # As where this process has too many files open. The other one may live.
        return "?", os.getppid()
    return words[0], int(words[1])


def _siblings_of_rank(rank: int) -> list[int]:
    """Returns the processes that our parent started as a rank, as torch's launchers do."""
    return [
        int(each.name)
        for each in PROCESSES.glob("[0-9]*")
        if _state(int(each.name)) and _has_rank(each, rank)
    ]


def _has_rank(process: Path, rank: int) -> bool:
    try:
        return f"RANK={rank}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
