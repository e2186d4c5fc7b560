"""Documents that run: the examples in docstrings and the Python commands of CONTRIBUTING.md."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "autopar").rglob("*.py")
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)
COMMAND = re.compile(r"^\$ (python -c '.*?')$\n(.*?)(?=^\$|^```)", re.MULTILINE | re.DOTALL)
PRINTED = COMMAND.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_docstring_examples(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


def test_the_guide_has_commands() -> None:
    assert len(PRINTED) == 2


@pytest.mark.parametrize(("command", "output"), PRINTED)
def test_commands_print_what_the_guide_shows(command: str, output: str) -> None:
    words = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
