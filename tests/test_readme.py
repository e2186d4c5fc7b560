"""The README's walk: every command is run as printed, and prints what is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import model_path

ROOT = Path(__file__).parent.parent
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROUNDING = re.compile(r"\d\.\de-\d\d")
"""Errors by rounding: the one thing that differs from one processor to another."""


def walk(text: str) -> list[tuple[str, str]]:
    """Returns (command, output) of every `$` line in the console blocks of a page."""
    steps: list[tuple[str, str]] = []
    for block in CONSOLE.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], ""))
            else:
                command, output = steps[-1]
                steps[-1] = (command, f"{output}{line}\n")
    return steps


@pytest.mark.models
def test_the_walk_prints_what_is_shown(tmp_path: Path) -> None:
    model_path("minilm")
    steps = walk((ROOT / "README.md").read_text())
    assert len(steps) >= 5
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, shown in steps:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stderr}"
        assert ROUNDING.sub("~", done.stdout) == ROUNDING.sub("~", shown), f"$ {command}"
