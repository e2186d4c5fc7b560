"""Runs onnx's backend suite on a virtual mesh and prints what became of every case.

python -m tests.onnx_suite [--mesh 2x2] [--only PATTERN] [--open]
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.onnx_suite.cases import KINDS, Case, load_cases
from tests.onnx_suite.judge import VERDICTS, Judge, Verdict
from tests.onnx_suite.opened import OpenJudge
from tests.onnx_suite.profile import outside


def main() -> int:
    """Runs the cases that the command line asks for; returns 1 if one is wrong or an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_suite", description=__doc__)
    parser.add_argument("--mesh", default="2x2", help="the mesh, as 2x2")
    parser.add_argument("--only", default="*", help="run the cases whose name matches this pattern")
    parser.add_argument("--outside", action="store_true", help="run those outside of the profile")
    parser.add_argument("--open", action="store_true", help="leave the sizes of inputs open")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    everything = load_cases(*KINDS)
    left_out = Counter(outside(case) for case in everything if outside(case))
    chosen = [case for case in everything if bool(outside(case)) == options.outside]
    with tempfile.TemporaryDirectory() as folder:
        judges = OpenJudge if options.open else Judge
        judge = judges(options.mesh, {case.name: case.proto for case in everything}, Path(folder))
        named = (case for case in chosen if fnmatch.fnmatch(case.name, options.only))
        verdicts = {case.name: _shown(case, judge.judge(case)) for case in named}
    print(f"\n{len(verdicts)} cases {'outside of' if options.outside else 'in'} the static profile")
    _print_totals(list(verdicts.values()))
    if not options.outside:
        _print_left_out(left_out)
    return int(any(verdict.kind in ("wrong", "error") for verdict in verdicts.values()))


def _shown(case: Case, verdict: Verdict) -> Verdict:
    if verdict.kind != "pass":
        print(f"{verdict.kind:8} {case.name}: {verdict.detail}", flush=True)
    return verdict


def _print_totals(verdicts: Sequence[Verdict]) -> None:
    kinds = Counter(verdict.kind for verdict in verdicts)
    passed = [verdict for verdict in verdicts if verdict.kind == "pass"]
    replicated = Counter(kind for verdict in passed for kind in verdict.replicated)
    for kind in dict.fromkeys((*VERDICTS, *kinds)):
        print(f"  {kind:8} {kinds[kind]}")
    print("of those that pass")
    print(f"  {sum(verdict.split > 0 for verdict in passed)} ran with an op split")
    print(f"  {sum(verdict.frozen for verdict in passed)} are constant: every input is frozen")
    print(f"  {sum(bool(verdict.replicated) for verdict in passed)} replicate an op without a rule")
    for kind, count in replicated.most_common():
        print(f"    {kind}: {count}")


def _print_left_out(left_out: Counter[str]) -> None:
    print(f"{sum(left_out.values())} cases outside of it (--outside runs them)")
    for reason, count in sorted(left_out.items()):
        print(f"  {count:4} {reason}")


if __name__ == "__main__":
    sys.exit(main())
