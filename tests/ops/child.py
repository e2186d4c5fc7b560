"""Runs a function in a child process, which may die of what it calls."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

T = TypeVar("T")


STDERR = 2
"""The file descriptor, whatever stands in the place of `sys.stderr`."""

LONGEST = 300
"""Seconds until a child counts as dead: one that has corrupted its memory may wait for ever."""


def in_child(function: Callable[[], T]) -> T | None:
    """Returns what a function returns in a forked process; None if the process dies.

    Raises:
        Exception: What the function raises.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(function, there))
    # Else the child's collector walks, and so copies, all that this process holds.
    gc.freeze()
    child.start()
    gc.unfreeze()
    there.close()
    try:
        if not here.poll(LONGEST):
            child.kill()
        found, error = here.recv()
    except EOFError:
        return None
    finally:
        child.join()
        here.close()
    if error is not None:
        raise error
    result: T = found
    return result


def _report(function: Callable[[], T], there: Connection) -> None:
    # What the allocator says of memory that a kernel has corrupted.
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)
    try:
        there.send((function(), None))
    except MemoryError:
        return  # of what is left of its memory; it counts as dead
    except Exception as error:
        there.send((None, RuntimeError(repr(error))))
