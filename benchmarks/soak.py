"""Many long runs on gloo, none of which may be lost.

    python benchmarks/soak.py                          # all of them, or those that are left
    python benchmarks/soak.py --only train-4 train-8   # these only
    python benchmarks/soak.py --report                 # what the runs so far came to

Runs train a small network (`soak_training`) or stress one kind of collective (`collective_stress`).
Each is several processes, and *lost* if one of them doesn't end with 0: it died, hung, or found a
wrong loss or value. Runs are numbered; the number is the seed of what a stress draws. Finished ones
stand in `runs.jsonl` in the state's folder, and a second call goes on behind them; without that
folder it begins anew. What the processes of a lost run printed is kept there too. `--load`
processes compute meanwhile, so that threads are interrupted anywhere. Exit code 1: a run was lost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

HERE = Path(__file__).parent
GRACE_SECONDS = 60.0
"""For how long the others of a process that failed may go on."""


@dataclass(frozen=True)
class Job:
    """Runs of one kind.

    Attributes:
        processes: How many processes a run has.
        steps: How many steps a run has.
        runs: How many runs there are.
        mesh: On which the network is trained, or
        collective: Which collective is stressed.
        pattern: As of `collective_stress`.
    """

    processes: int
    steps: int
    runs: int
    mesh: str = ""
    collective: str = ""
    pattern: str = "several"


def _stress(collective: str) -> Job:
    return Job(4, 12000, 20, collective=collective)


JOBS: Mapping[str, Job] = {
    "train-4": Job(4, 5000, 40, mesh="dp=2,tp=2"),
    "train-8": Job(8, 2000, 10, mesh="dp=4,tp=2"),
    "gather": _stress("gather"),
    "scatter": _stress("scatter"),
    "all_to_all": _stress("all_to_all"),
    "all_reduce": _stress("all_reduce"),
    "all_reduce_": _stress("all_reduce_"),
    "broadcast": _stress("broadcast"),
    "all": _stress("all"),
}


@dataclass(frozen=True)
class Run:
    """What became of a run.

    Attributes:
        job: A name of `JOBS`.
        number: The run's.
        steps: How many steps it had.
        seconds: How long it took.
        cpu_seconds: What its processes computed.
        codes: The exit codes of its processes; negative ones are signals, None a process that was
            ended because it or another hung.
        torch: Torch's version.
    """

    job: str
    number: int
    steps: int
    seconds: float
    cpu_seconds: float
    codes: tuple[int | None, ...]
    torch: str

    @property
    def lost(self) -> bool:
        """Whether a process didn't end with 0."""
        return any(code != 0 for code in self.codes)


def finished(folder: Path) -> list[Run]:
    """Returns the runs that a state's folder knows."""
    path = folder / "runs.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [Run(**{**fields, "codes": tuple(fields["codes"])}) for fields in found]


def remaining(runs: Sequence[Run], jobs: Mapping[str, Job]) -> Iterator[tuple[str, int]]:
    """Yields (job, number) of what isn't finished, one run of each job in turn."""
    done = {(run.job, run.number) for run in runs}
    for number in range(max((job.runs for job in jobs.values()), default=0)):
        for name, job in jobs.items():
            if number < job.runs and (name, number) not in done:
                yield name, number


def carry_out(name: str, number: int, job: Job, folder: Path, limit: float) -> Run:
    """Runs one run and returns what became of it.

    Args:
        name: Of the job.
        number: Of the run.
        job: What to run.
        folder: Of the state.
        limit: Seconds after which a run hangs.
    """
    command = _command(name, number, job, folder)
    logs = [folder / "logs" / f"{name}.{number}.{rank}.txt" for rank in range(job.processes)]
    logs[0].parent.mkdir(parents=True, exist_ok=True)
    start, before = time.monotonic(), _cpu_seconds()
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("w")) for path in logs]
        environments = _environments(job.processes)
        started = [
            subprocess.Popen(command, env=environment, stdout=file, stderr=file)
            for environment, file in zip(environments, files, strict=True)
        ]
        codes = _exit_codes(started, limit)
    seconds, computed = time.monotonic() - start, _cpu_seconds() - before
    run = Run(name, number, job.steps, seconds, computed, codes, torch.__version__)
    if not run.lost:
        for path in logs:
            path.unlink()
    return run


def _command(name: str, number: int, job: Job, folder: Path) -> list[str]:
    steps = ["--steps", str(job.steps)]
    if job.collective:
        what = ["--collective", job.collective, "--pattern", job.pattern, "--seed", str(number)]
        return [sys.executable, str(HERE / "collective_stress.py"), *what, *steps]
    prepared = folder / name
    training = [sys.executable, str(HERE / "soak_training.py")]
    options = [str(prepared), "--mesh", job.mesh, *steps]
    if not (prepared / "losses.npy").exists():
        subprocess.run([*training, "prepare", *options], check=True)
    return [*training, "train", *options]


def _environments(processes: int) -> list[dict[str, str]]:
    """Returns what a launcher tells each process of a run."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    sizes = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [
        {**os.environ, **common, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(processes)
    ]


def _exit_codes(
    processes: Sequence[subprocess.Popen[bytes]], limit: float
) -> tuple[int | None, ...]:
    """Waits for processes, ends those that hang, and returns how each ended."""
    deadline = time.monotonic() + limit
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    codes = tuple(process.poll() for process in processes)
    for process in processes:
        process.kill()
        process.wait()
    return codes


def _cpu_seconds() -> float:
    """Returns what processes that this one waited for have computed."""
    times = os.times()
    return times.children_user + times.children_system


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keeps this many processes computing meanwhile."""
    started = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def _compute() -> None:
    while True:
        sum(range(10**6))


def report(runs: Sequence[Run], jobs: Mapping[str, Job]) -> str:
    """Returns a table of what became of the runs, and the codes of those that were lost."""
    rows = [f"{'runs of':12} processes  steps  finished  lost  seconds each  CPU-s each"]
    for name, job in jobs.items():
        found = [run for run in runs if run.job == name]
        lost = sum(run.lost for run in found)
        each, computed = (
            sum(values) / max(1, len(found))
            for values in ([r.seconds for r in found], [r.cpu_seconds for r in found])
        )
        rows.append(
            f"{name:12} {job.processes:9} {job.steps:6} {len(found):4} of {job.runs:2}"
            f" {lost:5} {each:13.1f} {computed:11.1f}"
        )
    rows += [f"lost: {r.job} {r.number}: exit codes {list(r.codes)}" for r in runs if r.lost]
    return "\n".join(rows)


def main() -> int:
    """Carries out what is left, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(JOBS), metavar="JOB", default=list(JOBS))
    parser.add_argument("--state", type=Path, default=Path("build/soak"))
    parser.add_argument("--load", type=int, default=2, help="processes that compute meanwhile")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which a run hangs")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    jobs = {name: JOBS[name] for name in options.only}
    runs = finished(options.state)
    if not options.report:
        options.state.mkdir(parents=True, exist_ok=True)
        with load(options.load), (options.state / "runs.jsonl").open("a") as file:
            for name, number in remaining(runs, jobs):
                run = carry_out(name, number, jobs[name], options.state, options.limit)
                runs.append(run)
                print(json.dumps(asdict(run)), file=file, flush=True)
                print(f"{name} {number}: {'LOST' if run.lost else 'ok'}", flush=True)
    shown = [run for run in runs if run.job in jobs]
    print(report(shown, jobs))
    return int(any(run.lost for run in shown))


if __name__ == "__main__":
    sys.exit(main())
