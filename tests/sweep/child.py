"""Runs a function in a child process of its own, with limits of memory and processor time."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Record = Mapping[str, Any]

_SLACK = 3
"""Times as long by the clock as by the processor, which others use too."""


def run_limited(
    work: Callable[[], Iterator[Record]], memory_bytes: int, cpu_seconds: int
) -> Iterator[Record]:
    """Returns the records that a function yields in a child process, as they come.

    The last is `{"ended": ...}`: `done`, `limit of time`, or what else ended the process. The
    parent should have imported what the work needs, so that children needn't.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing, memory_bytes, cpu_seconds)
    os.close(writing)
    ended = None
    for line in _lines(reading, time.monotonic() + _SLACK * cpu_seconds):
        record = json.loads(line)
        ended = record.get("ended", ended)
        if "ended" not in record:
            yield record
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    yield {"ended": ended or _ending(status)}


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "limit of time" if number in (signal.SIGXCPU, signal.SIGKILL) else f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


def _lines(reading: int, until: float) -> Iterator[bytes]:
    rest = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            return
        got = os.read(reading, 1 << 16)
        if not got:
            return
        *whole, rest = (rest + got).split(b"\n")
        yield from whole


def _work(
    work: Callable[[], Iterator[Record]], writing: int, memory_bytes: int, cpu_seconds: int
) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        for record in work():
            os.write(writing, json.dumps(record).encode() + b"\n")
        ended = "done"
    except MemoryError:
        ended = "limit of memory"
    except BaseException as error:  # whatever it is, it is what there is to be told
        ended = f"{type(error).__name__}: {error} {traceback.format_exc()[-2000:]}"
    os.write(writing, json.dumps({"ended": ended}).encode() + b"\n")
    os._exit(0)
