"""Sweeps over transformers: every model type, small, trained and run on meshes.

python -m tests.sweep                              all of it, from where it stopped
python -m tests.sweep --only 'bert*' --checks fsdp inference
python -m tests.sweep --report docs/models.md      writes the table of what is known
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import transformers

from tests.sweep.building import Unbuilt, build
from tests.sweep.child import Record, run_limited
from tests.sweep.judge import CHECKS, judge
from tests.sweep.listed import model_types
from tests.sweep.report import render
from tests.sweep.state import State

MEMORY_BYTES = 4 << 30
CPU_SECONDS = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what isn't known yet; returns 1 if something is wrong or crashes."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    state = State(options.state)
    # Listed before the first run, so that none is left out without a word.
    state.list_types(model_types(), transformers.__version__)
    if options.report:
        options.report.write_text(render(state))
        return 0
    until = time.monotonic() + options.minutes * 60
    for model_type in state.types:
        if time.monotonic() > until:
            break
        if fnmatch.fnmatch(model_type, options.only):
            _sweep(state, model_type, state.missing(model_type, options.checks))
    return int(any(each.get("outcome") in ("wrong", "crash") for each in state.records))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--only", default="*", help="glob of model types")
    parser.add_argument("--checks", nargs="*", default=list(CHECKS), choices=list(CHECKS))
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no type is begun")
    parser.add_argument("--state", type=Path, default=Path("build/sweep.jsonl"))
    parser.add_argument("--report", type=Path, help="file to write the table to, and run nothing")
    return parser


def _sweep(state: State, model_type: str, checks: Sequence[str]) -> None:
    """Judges a model type by some checks, in a process of its own."""
    left = list(checks)
    while left:
        stopped, built = "done", False
        work = partial(_judged, model_type, tuple(left))
        for record in run_limited(work, MEMORY_BYTES, CPU_SECONDS):
            stopped = record.get("ended", stopped)
            built |= "built" in record
            if "ended" not in record:
                state.add({"type": model_type, **record})
                left = [each for each in left if each != record.get("check")]
                _tell(model_type, record)
            if record.get("outcome") == "unbuilt":
                left = []
        if not built and stopped != "done":
            state.add({"type": model_type, "outcome": "unbuilt", "reason": stopped})
            left = []
        elif left and stopped != "done":
            failed = {"check": left.pop(0), "outcome": "ended", "reason": stopped}
            state.add({"type": model_type, **failed})
            _tell(model_type, failed)
        elif stopped == "done":
            left = []


def _judged(model_type: str, checks: Sequence[str]) -> Iterator[Record]:
    try:
        case = build(model_type)
    except Unbuilt as error:
        yield {"outcome": "unbuilt", "reason": str(error)}
        return
    yield {
        "built": case.kind.__name__,
        "rung": str(case.rung),
        "loss": case.loss,
        "draws": case.draws,
        "parameters": case.parameters,
    }
    for check in checks:
        if check != "drawn" or case.draws:
            yield judge(case, check)


def _tell(model_type: str, record: Record) -> None:
    kind = record.get("check", record.get("built", "-"))
    told = [record.get("outcome", "built"), record.get("seconds", ""), record.get("reason", "")]
    print(json.dumps([model_type, kind, *told])[:300], flush=True)


if __name__ == "__main__":
    sys.exit(main())
