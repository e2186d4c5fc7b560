"""Sweeps over transformers' model types, and families of timm and torchvision, small, on meshes.

python -m tests.sweep                              all of it, from where it stopped
python -m tests.sweep --only 'bert*' --checks fsdp inference
python -m tests.sweep --only '*/*'                 families of timm and torchvision
python -m tests.sweep --report docs/models.md      writes the table of what is known
python -m tests.sweep --join a.jsonl b.jsonl       takes over what was found elsewhere
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import transformers

from tests.sweep import building, families
from tests.sweep.case import Unbuilt
from tests.sweep.child import Record, run_limited
from tests.sweep.judge import CHECKS, Judge
from tests.sweep.listed import model_types
from tests.sweep.report import render
from tests.sweep.state import FAMILIES, TYPES, State

MEMORY_BYTES = 6 << 30
CPU_SECONDS = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what isn't known yet; returns 1 if something is wrong or crashes."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    chosen = re.compile("|".join(map(fnmatch.translate, options.only)))
    state = State(options.state)
    _list(state)
    if options.join or options.report:
        if options.join:
            state.join(options.join)
        if options.report:
            options.report.write_text(render(state))
        return 0
    until = time.monotonic() + options.minutes * 60
    if missing := families.missing_libraries():
        print(f"{' and '.join(missing)} not installed: no families are judged", flush=True)
    for source, names in state.listed.items():
        if source == FAMILIES and missing:
            continue
        for name in filter(chosen.fullmatch, names):
            if time.monotonic() > until:
                break
            _sweep(state, source, name, state.missing(name, options.checks))
    return int(any(each.get("outcome") in ("wrong", "crash") for each in state.records))


def _list(state: State) -> None:
    """Lists everything before the first run, so that none is left out without a word."""
    state.list_names(TYPES, model_types(), transformers.__version__)
    if not families.missing_libraries():
        state.list_names(FAMILIES, list(families.families()), families.versions())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--only", nargs="+", default=["*"], help="globs of types or families")
    parser.add_argument("--checks", nargs="*", default=list(CHECKS), choices=list(CHECKS))
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no type is begun")
    parser.add_argument("--state", type=Path, default=Path("docs/models.jsonl"))
    parser.add_argument("--join", type=Path, nargs="+", help="files to take over, and run nothing")
    parser.add_argument("--report", type=Path, help="file to write the table to, and run nothing")
    return parser


def _sweep(state: State, source: str, name: str, checks: Sequence[str]) -> None:
    """Judges something by some checks, in a process of its own."""
    left = list(checks)
    while left:
        stopped, built, before = "done", False, len(left)
        work = partial(_judged, source, name, tuple(left))
        for record in run_limited(work, MEMORY_BYTES, CPU_SECONDS):
            stopped = record.get("ended", stopped)
            built |= "built" in record
            if "ended" not in record:
                state.add({"type": name, **record})
                left = [each for each in left if each != record.get("check")]
                _tell(name, record)
            if record.get("outcome") == "unbuilt":
                left = []
        if not built and stopped != "done":
            state.add({"type": name, "outcome": "unbuilt", "reason": stopped})
            left = []
        elif len(left) < before and stopped != "done":
            continue  # what it was at then gets a process, and limits, of its own
        elif left and stopped != "done":
            failed = {"check": left.pop(0), "outcome": "ended", "reason": stopped}
            state.add({"type": name, **failed})
            _tell(name, failed)
        elif stopped == "done":
            left = []


def _judged(source: str, name: str, checks: Sequence[str]) -> Iterator[Record]:
    try:
        case = (families if source == FAMILIES else building).build(name)
    except Unbuilt as error:
        yield {"outcome": "unbuilt", "reason": str(error)}
        return
    yield case.record()
    judge = Judge(case)
    for check in checks:
        if check != "drawn" or case.draws:
            yield judge.record(check)


def _tell(name: str, record: Record) -> None:
    kind = record.get("check", record.get("built", "-"))
    told = [record.get("outcome", "built"), record.get("seconds", ""), record.get("reason", "")]
    print(json.dumps([name, kind, *told])[:300], flush=True)


if __name__ == "__main__":
    sys.exit(main())
