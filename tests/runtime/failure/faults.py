"""Injects a fault into a rank among real processes, and tells what became of all of them.

python -m tests.runtime.failure.faults --runs 10 [--how kill] [--place step] ...     prints a table
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from autopar.base.errors import AutoparError
from autopar.runtime.job.launcher import launch
from tests.runtime.failure.faulty import TIMEOUT
from tests.runtime.failure.sabotage import HOWS, NEG, PLACES, VARIABLE
from tests.runtime.programs import build, deploy

RANKS = 4
SUM = f"""
program "sum" executable
func main {{
  input %x: f32[2]
  %n: f32[2] = {NEG}(self=%x) loc("model.py", 3)
  %y: f32[2] = comm.all_reduce(self=%n, monoid="sum", group="tp") loc("model.py", 4)
  return %y as "y" box [2]
}}
"""

SERIAL = f"""
program "sum" serial
func main {{
  input %x: f32[2]
  %n: f32[2] = {NEG}(self=%x)
  return %n as "y"
}}
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        seconds: From the fault, or the start if that is later, until the last process had ended;
            None if there was no fault.
        said: What the ranks, or whoever started them, said.
        left: Processes that were left.
    """

    seconds: float | None
    said: tuple[str, ...]
    left: int

    def names(self, rank: int) -> bool:
        """Returns whether all that was said names this rank, and no other one, as who failed."""
        named = [re.match(r"rank (\d+) (failed|was killed)", each) for each in self.said]
        return all(found is not None and int(found[1]) == rank for found in named)


def sum_build(folder: Path) -> Path:
    """Writes the build that all faults are injected into."""
    return build(folder / "build", deploy({"tp": RANKS}, SUM, tp=["tp"]), {}, SERIAL)


def inject(runner: str, place: str, how: str, victim: int, folder: Path) -> Outcome:
    """Runs a job with a fault.

    Args:
        runner: One of `RUNNERS`.
        place, how, victim: See `Fault`.
        folder: An empty folder.
    """
    built, file = sum_build(folder), folder / "fault"
    fault = f"{victim} {place} {how} {file}"
    said = RUNNERS[runner](built, folder, fault)
    ended = time.time()
    known = [float(each.read_text()) for each in (file, folder / "go") if each.exists()]
    seconds = ended - max(known) if file.exists() else None
    return Outcome(seconds, said, left_processes(built))


def _torchrun(built: Path, folder: Path, fault: str) -> tuple[str, ...]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, f"--nproc-per-node={RANKS}", "-m", "tests.runtime.failure.faulty"]
    environment = {**os.environ, VARIABLE: fault, "OMP_NUM_THREADS": "1"}
    words = [*command, str(built), str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    (folder / "log").write_text(done.stderr)
    said = [each.read_text() for each in sorted(folder.glob("said*"))]
    # The first line of what is said after a fault; the launcher's own words are in its summary.
    killed = re.search(r"Root Cause.*?rank *: (\d+) .*?exitcode *: -(\d+)", done.stderr, re.S)
    if killed is not None:
        said.append(f"rank {killed[1]} was killed by signal {killed[2]}")
    return tuple(said)


def _launched(built: Path, folder: Path, fault: str) -> tuple[str, ...]:
    os.environ[VARIABLE] = fault
    try:
        limits = {"timeout": TIMEOUT, "start_timeout": TIMEOUT}
        launch(built, {"x": torch.ones(2)}, modules=["tests.runtime.failure.sabotage"], **limits)
    except AutoparError as error:
        return (str(error),)
    finally:
        del os.environ[VARIABLE]
    return ()


def _by_hand(built: Path, folder: Path, fault: str) -> tuple[str, ...]:
    """Starts the processes without any launcher; a stopped one is ended at last."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    common = {VARIABLE: fault, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(RANKS)}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [
        sys.executable,
        "-m",
        "tests.runtime.failure.faulty",
        str(built),
        str(folder),
        "--gate",
    ]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            words, env={**os.environ, **common, **place, "RANK": str(rank)}, stdin=pipe, stdout=pipe
        )
        for rank in range(RANKS)
    ]
    # They begin together, however long each takes to import. One may have come to grief by then.
    for each in started:
        assert each.stdout is not None
        each.stdout.readline()
    (folder / "go").write_text(str(time.time()))
    for each in started:
        assert each.stdin is not None
        with suppress(BrokenPipeError):
            each.stdin.write(b"go\n")
            each.stdin.flush()
    victim = started[int(fault.split()[0])]
    for each in started:
        if each is not victim:
            each.wait()
    victim.kill()
    victim.wait()
    return tuple(each.read_text() for each in sorted(folder.glob("said*")))


RUNNERS = {"torchrun": _torchrun, "launch": _launched, "hand": _by_hand}
"""What starts the ranks."""


def left_processes(built: Path) -> int:
    """Returns the number of processes that still have the build on their command line."""
    found = 0
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += str(built).encode() in each.read_bytes()
        except OSError:
            continue
    return found


def main() -> None:
    """Prints what became of many jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--runner", action="append", choices=[*RUNNERS])
    parser.add_argument("--how", action="append", choices=HOWS)
    parser.add_argument("--place", action="append", choices=PLACES)
    parser.add_argument("--victim", action="append", type=int)
    options = parser.parse_args()
    for runner in options.runner or ("torchrun", "launch"):
        for how in options.how or ("kill", "stop"):
            for place in options.place or PLACES:
                for victim in options.victim or (0, 2):
                    if (runner, place) != ("launch", "between"):
                        _row(runner, how, place, victim, options.runs)


def _row(runner: str, how: str, place: str, victim: int, runs: int) -> None:
    seconds, said, named, left, missed = [], Counter[str](), 0, 0, 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            found = inject(runner, place, how, victim, Path(name))
        missed += found.seconds is None
        seconds.append(found.seconds or 0.0)
        named += found.names(victim)
        left += found.left
        said.update(re.sub(r"/tmp/\S+", "...", each)[:250] for each in found.said)
    print(
        f"{runner:8} | {how:5} | rank {victim} | {place:9} | {runs} runs, {missed} without a fault"
        f" | ended after {statistics.median(seconds):.1f} s (most {max(seconds):.1f} s)"
        f" | {left} left | named in {named}",
        flush=True,
    )
    for words, count in said.most_common(4):
        print(f"    {count} x {words}", flush=True)


if __name__ == "__main__":
    main()
