"""Carries cases out in processes of their own, forked from this one, within limits; and judges."""

from __future__ import annotations

import io
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutations.target import Case, carry_out, output_of, shown

SECONDS = 30
"""Of a processor's time, from which on a case hangs: other work on the machine doesn't count."""

PATIENCE = 240
"""Seconds from which on a case that does nothing hangs, on a machine that does other work, too."""

MEMORY = 2 << 30
"""Bytes that a case may take beyond what the process took when it was forked."""

FINE = (0, 1, 2)
_SHOWN = 20_000


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        case: Which.
        done: What was done to the files.
        steps: What was carried out, and its exit code.
        failures: What is wrong with that; nothing if all is well.
        seconds: Of a processor's time.
        bytes: At the peak.
        text: Standard error.
    """

    case: Case
    done: str = ""
    steps: tuple[tuple[str, int], ...] = ()
    failures: tuple[str, ...] = ()
    seconds: float = 0.0
    bytes: int = 0
    text: str = ""

    @property
    def refused(self) -> bool:
        """Returns whether the last step ended with an error."""
        return bool(self.steps) and self.steps[-1][1] != 0


@dataclass
class _Running:
    case: Case
    folder: Path
    process: int
    start: float = field(default_factory=time.monotonic)

    @property
    def work(self) -> Path:
        return self.folder / "work"


def carry_out_all(cases: Iterable[Case], prepared: Path, jobs: int = 1) -> Iterator[Outcome]:
    """Yields the outcomes of cases, as they end.

    Args:
        cases: Which.
        prepared: A folder with a folder for each target with its sound files.
        jobs: How many are under way at a time.
    """
    left = iter(cases)
    under_way: list[_Running] = []
    number = 0
    more = True
    while more or under_way:
        while more and len(under_way) < jobs:
            case = next(left, None)
            more = case is not None
            if case is not None:
                number += 1
                under_way.append(_start(case, prepared, prepared / f".case-{number}"))
        ended = [(one, found) for one in under_way if (found := _ended(one)) is not None]
        for one, (status, usage) in ended:
            under_way.remove(one)
            yield _judge(one, status, usage)
            shutil.rmtree(one.folder, ignore_errors=True)
        if not ended:
            time.sleep(0.002)


def _start(case: Case, prepared: Path, folder: Path) -> _Running:
    for part in ("work", "tmp"):
        (folder / part).mkdir(parents=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of threads; there are none that hold what a case needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        _be_child(case, prepared / case.target.name, folder)
    return _Running(case, folder, process)


def _ended(one: _Running) -> tuple[int, Any] | None:
    process, status, usage = os.wait4(one.process, os.WNOHANG)
    if process:
        return status, usage
    if time.monotonic() - one.start > PATIENCE:
        os.kill(one.process, signal.SIGKILL)
    return None


def _be_child(case: Case, prepared: Path, folder: Path) -> None:
    """Carries out a case; doesn't return."""
    code = 99
    try:
        os.setsid()
        for number, name in ((0, "/dev/null"), (1, folder / "out"), (2, folder / "err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(n, "wb", 0)) for n in (1, 2))
        os.environ["TMPDIR"] = str(folder / "tmp")
        os.chdir(folder / "work")
        with (folder / "report").open("w", buffering=1) as report:
            done, steps = case.make(prepared, folder / "work")
            print(json.dumps([done, sorted(os.listdir())]), file=report)
            _limit()
            for step in steps:
                print(json.dumps([shown(step), output_of(step), None]), file=report)
                found = carry_out(step)
                print(json.dumps([shown(step), output_of(step), found]), file=report)
                if found:
                    break
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _limit() -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # No longer than what a user's shell gives.
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))


def _judge(one: _Running, status: int, usage: Any) -> Outcome:
    text = (one.folder / "err").read_text(errors="backslashreplace")
    report = [json.loads(line) for line in (one.folder / "report").read_text().splitlines()]
    done, before = report[0] if report else ("", [])
    ended = [(step, code) for step, _, code in report[1:] if code is not None]
    failures = [
        *_by_status(status),
        *(f"exit code {code} of {step}" for step, code in ended if code not in FINE),
        *_by_text(text, bool(ended) and ended[-1][1] != 0 and not _reports(one)),
    ]
    if usage.ru_maxrss << 10 > MEMORY:
        failures.append(f"{usage.ru_maxrss >> 10} MiB at the peak")
    if os.waitstatus_to_exitcode(status) == 0:
        failures += _left_over(one, report[1:], before)
    return Outcome(
        case=one.case,
        done=done,
        steps=tuple(ended) or tuple((step, -1) for step, _, _ in report[1:]),
        failures=tuple(failures),
        seconds=usage.ru_utime + usage.ru_stime,
        bytes=usage.ru_maxrss << 10,
        text=text[-_SHOWN:],
    )


def _by_status(status: int) -> Iterator[str]:
    code = os.waitstatus_to_exitcode(status)
    if -code in (signal.SIGKILL, signal.SIGXCPU):
        yield f"hangs: more than {SECONDS} seconds of a processor, or {PATIENCE} in all"
    elif code < 0:
        yield f"killed by {signal.Signals(-code).name}"
    elif code:
        yield f"the case itself can't be made or carried out ({code})"


def _reports(one: _Running) -> bool:
    """Returns whether something is on standard output, as of `verify`, which says what differs."""
    return (one.folder / "out").stat().st_size > 0


def _by_text(text: str, mute: bool) -> Iterator[str]:
    if "Traceback" in text:
        yield "a traceback"
    if mute and not any(line.startswith("error: ") for line in text.splitlines()):
        yield "a failure without a message"
    if "enough memory" in text or "can't allocate memory" in text:
        yield f"more than {MEMORY >> 20} MiB asked for"


def _left_over(one: _Running, steps: list[Any], before: list[str]) -> Iterator[str]:
    """Yields what lies around that a step which failed, or none, has written."""
    written = {output for _, output, code in steps if code == 0 and output}
    allowed = {*before, *written, *one.case.target.outputs}
    if strangers := sorted(set(os.listdir(one.work)) - allowed):
        yield f"left behind: {', '.join(strangers)}"
    if left := sorted(os.listdir(one.folder / "tmp")):
        yield f"left behind in TMPDIR: {', '.join(left)}"
