"""What becomes of a training when one of its processes fails: how soon all end, and who is named.

    PYTHONPATH=. python benchmarks/failures.py                            # 10 runs of each row
    PYTHONPATH=. python benchmarks/failures.py --phase step --how kill    # these only
    PYTHONPATH=. python benchmarks/failures.py --report                   # the runs so far

A run trains a small network (`soak_training`) on 4 processes, forked from one that has imported
everything, and lets one of them come to grief, another one in each run: in a *phase* it is killed,
stopped (SIGSTOP), sleeps, raises, or calls `sys.exit`. Measured are the seconds from there, or from
when the last of the others asks for the store if that is later, until the last process has ended,
less the time-out where it hangs, or had ended before the others could see it; and whether what the
others print names that rank as the one that failed, and no other.
Nobody but the processes themselves ends any of them: no launcher is there to do so. Those that are
left `LIMIT` seconds later are counted, and don't count among the last. Runs stand in a file, and a
second call goes on behind them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from soak_training import batch, prepare
from torch.distributed.distributed_c10d import Store

from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.training.opening import open_trainer

RANKS = 4
TIMEOUT = 5.0
"""Seconds that calls wait for other ranks."""
START_TIMEOUT = 10.0
"""Seconds that the start does."""
LIMIT = 15.0
STARTS = 10.0
"""Seconds that processes may take until the fault."""
PHASES = ("start", "handshake", "load", "step", "between", "save", "close")
HOWS = ("kill", "stop", "sleep", "raise", "exit")
HANGS = ("stop", "sleep")
SABOTAGE: Any = importlib.import_module("tests.runtime.failure.sabotage")
"""It puts itself in the place of what modules import, which no type allows."""
IMPORTED = ["soak_training", "tests.runtime.failure.sabotage", "autopar.runtime.training.opening"]
CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Run:
    """What became of a run.

    Attributes:
        phase, how: The fault.
        number: Of the run.
        seconds: From the fault, or the end of the time-out, until the last process had ended; None
            if the fault didn't happen.
        named: The ranks that others than the victim named.
        codes: The exit codes by rank; negative ones are signals.
        left: How many processes had to be ended.
        said: What one of the others printed last.
    """

    phase: str
    how: str
    number: int
    seconds: float | None
    named: tuple[int, ...]
    codes: tuple[int | None, ...]
    left: int
    said: str

    @property
    def victim(self) -> int:
        """The rank that comes to grief."""
        return self.number % RANKS


def carry_out(phase: str, how: str, number: int, build: Path) -> Run:
    """Runs a run and returns what became of it."""
    with tempfile.TemporaryDirectory(prefix="failures-") as name:
        folder, victim = Path(name), number % RANKS
        fault = (str(victim), phase, how, str(folder / "fault"))
        port = _free_port()
        started = []
        for rank in range(RANKS):
            processes = Processes(rank, RANKS, rank, RANKS, "127.0.0.1", port)
            process = CONTEXT.Process(target=_rank, args=(processes, fault, build, folder))
            process.start()
            started.append(process)
        ended, left = _ended(started, _time_out(phase) + LIMIT)
        others = [rank for rank in range(RANKS) if rank != victim]
        lines = [line for rank in others for line in _last_line(folder / f"stderr{rank}")]
        happened, asked = _time(folder / "fault"), [_time(_asked(folder, rank)) for rank in others]
        seconds = None if happened is None else ended - max(filter(None, (happened, *asked)))
        if seconds is not None and (how in HANGS or _is_unseen(phase, happened, asked, lines)):
            seconds -= _time_out(phase)
        found = [re.search(r"\brank (\d+)(?: failed|:| left)", line) for line in lines]
        named = tuple(int(match[1]) for match in found if match)
        codes = tuple(process.exitcode for process in started)
    return Run(phase, how, number, seconds, named, codes, left, lines[0] if lines else "")


def _is_unseen(
    phase: str, happened: float | None, asked: Sequence[float | None], lines: Sequence[str]
) -> bool:
    """Whether the victim had ended before another rank asked for the store, and found none."""
    late = happened is not None and any(each is not None and each > happened for each in asked)
    return phase == "start" or (late and any("can't reach the store" in line for line in lines))


def _asked(folder: Path, rank: int) -> Path:
    """Returns where a rank notes when it asked for the store."""
    return folder / f"asked{rank}"


def _time(file: Path) -> float | None:
    return float(file.read_text()) if file.exists() else None


def _nothing() -> None:
    """Ends."""


def _time_out(phase: str) -> float:
    return START_TIMEOUT if phase in ("start", "handshake", "load") else TIMEOUT


def _rank(processes: Processes, fault: tuple[str, str, str, str], build: Path, path: Path) -> None:
    """Trains six steps and saves one of them; what it prints goes to a file of the rank's own."""
    with (path / f"stderr{processes.rank}").open("w") as file:
        os.dup2(file.fileno(), 2)
    os.environ["RANK"] = str(processes.rank)
    injected = SABOTAGE.Fault(*fault)
    SABOTAGE.arm(injected)
    _note_asking(_asked(path, processes.rank))
    limits: dict[str, Any] = {"timeout": TIMEOUT, "start_timeout": START_TIMEOUT}
    with open_trainer(build, processes=processes, backend="gloo", **limits) as trainer:
        for step in range(6):
            trainer.step(batch(step))
            injected.at("between")
            if step == 3:
                trainer.save_checkpoint(path / "checkpoint")


def _note_asking(file: Path) -> None:
    """Has this process note when it asks for the store first."""
    connect = Processes.connect

    def noted(self: Processes, patience: Patience) -> Store:
        if not file.exists():
            file.write_text(str(time.time()))
        return connect(self, patience)

    Processes.connect = noted  # type: ignore[method-assign]


def _ended(processes: Sequence[Any], limit: float) -> tuple[float, int]:
    """Waits for processes; returns when the last one ended, and how many had to be ended."""
    ended = time.time()
    deadline, left = ended + limit + STARTS, list(processes)
    while left and time.time() < deadline:
        time.sleep(0.02)
        alive = [process for process in left if process.is_alive()]
        left, ended = alive, ended if len(alive) == len(left) else time.time()
    for process in processes:
        process.kill()
        process.join()
    return ended, len(left)


def _last_line(file: Path) -> list[str]:
    return file.read_text().splitlines()[-1:] if file.exists() else []


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def report(runs: Sequence[Run]) -> str:
    """Returns a table of what became of the runs."""
    rows = [
        "phase     how    runs  ended after: median, most  named: right, wrong, nobody  left"
        "  exit codes of the others"
    ]
    for phase, how in dict.fromkeys((run.phase, run.how) for run in runs):
        found = [run for run in runs if (run.phase, run.how) == (phase, how)]
        seconds = [run.seconds for run in found if run.seconds is not None] or [float("nan")]
        right = sum(bool(run.named) and set(run.named) == {run.victim} for run in found)
        nobody = sum(not run.named for run in found)
        codes = Counter(
            code for run in found for at, code in enumerate(run.codes) if at != run.victim
        )
        rows.append(
            f"{phase:9} {how:6} {len(seconds):4}  {median(seconds):18.1f} s {max(seconds):4.1f} s"
            f"  {right:12} {len(found) - right - nobody:6} {nobody:7}"
            f"  {sum(run.left for run in found):4}"
            f"  {', '.join(f'{code} ({count})' for code, count in codes.most_common())}"
        )
    return "\n".join(rows)


def finished(file: Path) -> list[Run]:
    """Returns the runs that a file knows."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [
        Run(**{**run, "named": tuple(run["named"]), "codes": tuple(run["codes"])})
        for run in map(json.loads, lines)
    ]


def main() -> int:
    """Carries out what is left, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--phase", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--how", nargs="+", choices=HOWS, default=list(HOWS))
    parser.add_argument("--state", type=Path, default=Path("build/failures"))
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    file = options.state / "runs.jsonl"
    if not options.report:
        _carry_on(options, file)
    runs = finished(file)
    order = {(phase, how): 0 for phase in PHASES for how in HOWS}
    print(report(sorted(runs, key=lambda run: [*order].index((run.phase, run.how)))))
    return 0


def _carry_on(options: argparse.Namespace, file: Path) -> None:
    """Carries out the runs that aren't in a file, one of each row in turn."""
    if not (options.state / "build").exists():
        prepare(options.state, mesh="dp=2,tp=2", steps=1, seed=0)
    CONTEXT.set_forkserver_preload(IMPORTED)
    # It imports everything before the first process is forked.
    first = CONTEXT.Process(target=_nothing)
    first.start()
    first.join()
    done = {(run.phase, run.how, run.number) for run in finished(file)}
    for number in range(options.runs):
        for phase in options.phase:
            for how in options.how:
                if (phase, how, number) not in done:
                    run = carry_out(phase, how, number, options.state / "build")
                    with file.open("a") as out:
                        print(json.dumps(asdict(run)), file=out)


if __name__ == "__main__":
    sys.exit(main())
