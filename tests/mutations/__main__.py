"""Mutates every kind of file that autopar reads, and judges what becomes of it.

python -m tests.mutations --cases 10000 --state build/mutations.json    goes on where it ended
python -m tests.mutations --only 'onnx*' --cases 100
python -m tests.mutations --repeat onnx:17 build:4 --keep FOLDER        single cases, in full
python -m tests.mutations --corpus                                      every case that ever failed

A mutation is a function of its target's name and its seed alone. Autopar may accept or refuse what
it is given. It fails if it crashes, hangs, shows a traceback, calls itself defective, refuses
without a message, takes more than 2 GiB, or leaves something half-written.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutations.campaign import carry_on, prepare, read_state, table, write_state
from tests.mutations.corpus import CORPUS
from tests.mutations.isolated import Outcome, carry_out_all
from tests.mutations.target import Case
from tests.mutations.targets.every import TARGETS, case_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; returns 1 if a case failed."""
    options = _parser().parse_args(arguments)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        if options.repeat:
            return _repeat(options.repeat, Path(folder), options.keep)
        if options.corpus:
            return _replay(Path(folder), options.jobs)
        return _go_on(options, Path(folder))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=1000, help="how many more, of all targets")
    parser.add_argument("--only", default="*", help="glob of targets")
    parser.add_argument("--jobs", type=int, default=1, help="cases under way at a time")
    parser.add_argument("--state", type=Path, help="a file that remembers what was done")
    parser.add_argument("--repeat", nargs="+", metavar="TARGET:SEED", help="these cases alone")
    parser.add_argument("--keep", type=Path, help="with --repeat, where to leave the files")
    parser.add_argument("--corpus", action="store_true", help="every case that ever failed")
    return parser


def _go_on(options: argparse.Namespace, folder: Path) -> int:
    chosen = [TARGETS[name] for name in TARGETS if fnmatch.fnmatch(name, options.only)]
    targets = prepare(chosen, folder)
    state = read_state(options.state)
    known = sum(len(tally.failures) for tally in state.values())
    with contextlib.suppress(KeyboardInterrupt):
        for outcomes in carry_on(targets, state, options.cases, folder, options.jobs):
            write_state(options.state, state)
            for outcome in outcomes:
                _show_failure(outcome)
    print(table(state))
    return int(sum(len(tally.failures) for tally in state.values()) > known)


def _show_failure(outcome: Outcome) -> None:
    if not outcome.failures:
        return
    print(f"{outcome.case}: {'; '.join(outcome.failures)}")
    print(f"  {outcome.done:.300}")
    tail = [line for line in outcome.text.strip().splitlines() if line.strip()][-4:]
    print("\n".join(f"  | {line:.300}" for line in tail), flush=True)


def _repeat(names: Sequence[str], folder: Path, keep: Path | None) -> int:
    failed = 0
    for outcome in _outcomes([case_of(name) for name in names], folder, 1):
        print(f"{outcome.case}: {outcome.done}")
        for step, code in outcome.steps:
            print(f"  {code:3} {step}")
        print(outcome.text.rstrip())
        print(f"{outcome.seconds:.1f} s, {outcome.bytes >> 20} MiB; {outcome.failures or 'fine'}\n")
        failed += bool(outcome.failures)
    for name in names if keep is not None else ():
        case = case_of(name)
        place = Path(keep or "", name.replace(":", "-")).absolute()
        place.mkdir(parents=True)
        case.make(folder / case.target.name, place)
    return int(failed > 0)


def _replay(folder: Path, jobs: int) -> int:
    failed = 0
    for outcome in _outcomes([case_of(name) for name in CORPUS], folder, jobs):
        _show_failure(outcome)
        failed += bool(outcome.failures)
    print(f"{len(CORPUS)} cases that failed once, {failed} do now")
    return int(failed > 0)


def _outcomes(cases: Sequence[Case], folder: Path, jobs: int) -> Iterator[Outcome]:
    named = {case.target.name: case.target for case in cases}
    ready = {target.name for target in prepare(named.values(), folder)}
    return carry_out_all([case for case in cases if case.target.name in ready], folder, jobs)


if __name__ == "__main__":
    sys.exit(main())
