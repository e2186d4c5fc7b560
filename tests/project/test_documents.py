"""Documents that run: the examples in docstrings and the Python commands of CONTRIBUTING.md.

And the rows of tables that it shows are those of the package.
"""

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
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PRINTED = COMMAND.findall(GUIDE)
CODE = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
ROWS = [block for block in CODE if not block.startswith("@")]
"""The blocks that are a row of a table; one that stands alone is in parentheses, for the format."""


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


def test_rows_that_the_guide_shows_are_in_the_package() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "autopar").rglob("*.py")]
    package = ["".join(text.split()) for text in texts]
    shown = [
        "".join(re.sub(r"^\(\n(.*)^\)\n", r"\1", row, flags=re.S | re.M).split()) for row in ROWS
    ]
    assert len(shown) == 4
    assert [row for row in shown if not any(row in text for text in package)] == []
