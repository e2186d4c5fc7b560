"""The soak: it goes on where it stopped, and a process that doesn't end with 0 loses a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.soak import Job, Run, carry_out, finished, remaining, report

TWO = {"gather": Job(2, 1, 2), "train-4": Job(2, 1, 1)}


def run(number: int, *codes: int | None) -> Run:
    return Run("gather", number, 1, 2.0, 3.0, codes, "2.13.0")


def test_finished_runs_are_not_repeated() -> None:
    assert list(remaining([], TWO)) == [("gather", 0), ("train-4", 0), ("gather", 1)]
    assert list(remaining([run(0, 0, -6)], TWO)) == [("train-4", 0), ("gather", 1)]


def test_what_finished_is_read_again(tmp_path: Path) -> None:
    assert finished(tmp_path) == []
    (tmp_path / "runs.jsonl").write_text(
        '{"job": "gather", "number": 0, "steps": 1, "seconds": 2.0, "cpu_seconds": 3.0,'
        ' "codes": [0, null], "torch": "2.13.0"}\n'
    )
    assert finished(tmp_path) == [run(0, 0, None)]


def test_lost_runs_are_named() -> None:
    found = report([run(0, 0, 0), run(1, 0, -6)], {"gather": TWO["gather"]})
    assert found.splitlines()[1:] == [
        "gather               2      1    2 of  2     1           2.0         3.0",
        "lost: gather 1: exit codes [0, -6]",
    ]


def test_a_process_that_dies_or_hangs_loses_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, time; os.environ['RANK'] == '1' and os.abort(); time.sleep(600)"
    monkeypatch.setattr(soak, "_command", lambda *_: [sys.executable, "-c", code])
    monkeypatch.setattr(soak, "GRACE_SECONDS", 0.0)
    found = carry_out("gather", 0, TWO["gather"], tmp_path, limit=60)
    assert found.codes == (None, -6)
    assert found.lost
    assert len(list((tmp_path / "logs").iterdir())) == 2
