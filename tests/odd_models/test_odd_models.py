"""No odd model crashes, hangs, takes much memory or leaves anything behind; each is told apart."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.odd_models.table import TABLE


def test_all() -> None:
    """Each in a process of its own, within limits of time and memory."""
    command = [sys.executable, "-m", "tests.odd_models"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == TABLE.keys()
    wrong = {name: each for name, each in found.items() if not as_expected(name, each)}
    assert not wrong


def as_expected(name: str, ended: dict[str, object]) -> bool:
    """Returns whether a model compiled, or was refused for its reason."""
    says = TABLE[name].says
    as_said = ended["code"] == bool(says) and says in str(ended["text"])
    return as_said and not ended["failures"]
