"""Pages that are walked: what their examples print is compared with what stands there.

A page has ```console blocks, whose `$` lines are run by a shell, and ```pycon blocks, whose `>>>`
lines are run in this process, all in the page's order and in one folder. What a ```console measured
block prints has other figures on each machine.
"""

from __future__ import annotations

import doctest
import math
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|pycon)( measured)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROUNDING = re.compile(r"\d\.\de[-+]\d\d")
"""Errors by rounding, which differ from one processor to another."""

NUMBER = re.compile(r"\d+\.\d{4,}")
"""Numbers such as losses: on other processors, the last digit may be another."""

MEASURED = re.compile(r"\s*\d[\d.]*(?:e[-+]?\d+)?(?: (?:ns|us|ms|s|[MG]B/s)\b)?[ \t]*")
"""A measured figure, with its unit and the blanks that align it."""

WARNED = re.compile(r"\n\nWarning: .*\Z", re.DOTALL)
"""What a measured example says at its end where other programs ran beside it."""

LEFT_OUT = ", ..., "
"""Stands for further items of a list in what a page shows."""

PLACE = re.compile(r"[^\s\[]*/(?=examples/)")
"""What stands before the examples in a path: another folder on each machine."""


@dataclass(frozen=True)
class Step:
    """An example of a page.

    Attributes:
        kind: `console` or `pycon`.
        source: The command.
        shown: What the page says it prints.
        is_measured: Whether what it prints has figures of the machine.
    """

    kind: str
    source: str
    shown: str
    is_measured: bool = False


def steps_of(text: str) -> list[Step]:
    """Returns the examples of a page."""
    return [
        replace(step, is_measured=bool(measured))
        for kind, measured, block in BLOCK.findall(text)
        for step in (_commands(block) if kind == "console" else _statements(block))
    ]


def _commands(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield Step("console", command, shown)


def _statements(block: str) -> Iterator[Step]:
    for example in doctest.DocTestParser().get_examples(block):
        yield Step("pycon", example.source, example.want.replace("<BLANKLINE>", ""))


class Walk:
    """Runs examples in a folder, which has the project's examples.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "walk"}
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "LICENSE").symlink_to(ROOT / "LICENSE")

    def run(self, step: Step) -> str:
        """Returns what an example prints; of an error the last lines, from its name on."""
        runs: Callable[[str], str] = self._shell if step.kind == "console" else self._python
        return runs(step.source)

    def _shell(self, command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stderr}"
        return done.stdout

    def _python(self, source: str) -> str:
        printed = StringIO()
        with redirect_stdout(printed):
            try:
                exec(compile(source, "<stdin>", "single"), self.names)
            except Exception as error:
                text = "".join(traceback.format_exception_only(error))
                printed.write(f"Traceback (most recent call last):\n    ...\n{text}")
        return printed.getvalue()


def differs(found: str, step: Step) -> bool:
    """Returns whether an example printed something else than shown, but for rounding.

    What is shown may leave out items of one list.

    Args:
        found: What it printed.
        step: The example.
    """
    mine = _plain(found)
    theirs = _filled(mine, _plain(step.shown))
    if step.is_measured:
        mine, theirs = (WARNED.sub("", text) for text in (mine, theirs))
        return MEASURED.sub("~", mine) != MEASURED.sub("~", theirs)
    if NUMBER.sub("~", mine) != NUMBER.sub("~", theirs):
        return True
    pairs = zip(NUMBER.findall(mine), NUMBER.findall(theirs), strict=True)
    return not all(math.isclose(float(a), float(b), rel_tol=1e-3) for a, b in pairs)


def _filled(found: str, shown: str) -> str:
    """Returns what is shown, with the items of what was found where a list leaves some out."""
    head, gap, tail = shown.partition(LEFT_OUT)
    fits = gap and found.startswith(head + ", ") and found.endswith(", " + tail)
    return found if fits else shown


def _plain(text: str) -> str:
    return PLACE.sub("", ROUNDING.sub("~", text)).rstrip()
