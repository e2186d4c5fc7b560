"""Starts real processes for tests: forked from a server that has imported torch once."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from autopar.runtime.job.processes import Processes

SECONDS = 600.0
"""After which a process is killed: no test takes so long on the slowest machine."""

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = [
    "torch.distributed",
    "torch._dynamo",
    "autopar.modules",
    "autopar.parallel",
    "autopar.runtime.execute.session",
    "tests.runtime.execute.targets",
]
"""Modules that processes are forked with: most import them, which takes seconds of each."""


def run_ranks(count: int, target: Callable[..., Any], *args: Any, size: int = 0) -> list[Any]:
    """Calls `target(processes, *args)` in `count` processes and returns what each returned.

    A process that raised gives the exception's text behind `"! "`, one that was killed its exit
    code.
    """
    CONTEXT.set_forkserver_preload(PRELOADED)
    port = _free_port()
    ranks = []
    for rank in range(count):
        mine, theirs = CONTEXT.Pipe(duplex=False)
        processes = Processes(rank, size or count, rank, count, "127.0.0.1", port)
        process = CONTEXT.Process(target=_run, args=(theirs, target, processes, args))
        process.start()
        theirs.close()
        ranks.append((process, mine))
    outcomes = []
    for process, mine in ranks:
        wait([mine, process.sentinel], timeout=SECONDS)
        # A pipe holds little: a process ends when what it returned has been read.
        returned = _received(mine)
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()
        outcomes.append(process.exitcode if returned is None else returned[0])
    return outcomes


def _received(pipe: Connection) -> tuple[Any] | None:
    """Returns what a process sent; None if it ended without a word, or hasn't sent anything yet."""
    try:
        return (pipe.recv(),) if pipe.poll() else None
    except EOFError:
        return None


def _run(
    pipe: Connection, target: Callable[..., Any], processes: Processes, args: tuple[Any, ...]
) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        pipe.send(target(processes, *args))
    except Exception as error:
        pipe.send(f"! {error}")
        if os.environ.get("AUTOPAR_TEST_TRACEBACKS"):
            traceback.print_exc()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
