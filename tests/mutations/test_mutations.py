"""What a mutation did once, it doesn't do again; and some hundred mutations of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.target import Case
from tests.mutations.targets.models import OWN
from tests.mutations.targets.yaml_files import COMMAND


def mutations(*words: object, seconds: int) -> str:
    """Runs mutations in a process of their own: nothing else runs in what is forked."""
    command = [sys.executable, "-m", "tests.mutations", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_failed_once() -> None:
    mutations("--corpus", "--jobs", 2, seconds=600)


def test_small_models_and_words(tmp_path: Path) -> None:
    """And they go on where they ended."""
    state = tmp_path / "state.json"
    for _ in range(2):
        mutations("--only", "onnx", "--cases", 40, "--state", state, seconds=600)
    known = json.loads(state.read_text())["onnx"]
    assert known["cases"] == 80
    assert known["failures"] == []
    assert 5 < known["accepted"] < known["refused"]


@pytest.mark.faults
def test_every_kind_of_file() -> None:
    *_, last = mutations("--cases", 500, "--jobs", 2, seconds=3000).splitlines()
    name, cases, accepted, refused, failures = last.split()
    assert (name, failures) == ("together", "0")
    assert int(cases) > 450
    # Most mutations are noticed; what isn't is mutated numbers, or what nobody reads.
    assert int(refused) > int(accepted) > 0.02 * int(cases)


def test_a_case_is_a_function_of_its_name(tmp_path: Path) -> None:
    for target in (OWN, COMMAND):
        (tmp_path / target.name).mkdir()
        target.prepare(tmp_path / target.name)
        for seed in range(20):
            first, second = (_made(Case(target, seed), tmp_path, again) for again in "ab")
            assert first == second


def _made(case: Case, prepared: Path, again: str) -> object:
    folder = prepared / f"{case}{again}"
    folder.mkdir()
    done, steps = case.make(prepared / case.target.name, folder)
    return done, steps, {path.name: path.read_bytes() for path in folder.iterdir()}
