"""Judges of mutations notice what they are there for, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations.campaign import Tally, read_state, write_state

EXPECTED = {
    "crash": "killed by SIGSEGV",
    "spin": "hangs: more than 1 seconds of a processor, or 30 in all",
    "wait": "hangs: more than 1 seconds of a processor, or 3 in all",
    "fail": "exit code 70 of fail; a traceback; a failure without a message",
    "refuse": "",
    "refuse_in_silence": "a failure without a message",
    "ask_for_memory": "more than 2048 MiB asked for",
    "leave_a_file": "left behind: half",
    "leave_a_temporary_file": "left behind in TMPDIR: autopar-1",
    "compile --mesh": "",
    "--version": "",
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """What the judges say of each step."""
    command = [sys.executable, "-m", "tests.mutations.judged"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    judged: dict[str, list[str]] = json.loads(done.stdout)
    return judged


@pytest.mark.parametrize("step", EXPECTED)
def test_what_is_a_failure(found: dict[str, list[str]], step: str) -> None:
    assert "; ".join(found[step]) == EXPECTED[step]


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = {"onnx": Tally(cases=9, accepted=1, refused=7, failures=[3], seconds=1.5, bytes=8)}
    assert read_state(tmp_path / "state.json") == {}
    write_state(tmp_path / "state.json", state)
    assert read_state(tmp_path / "state.json") == state
