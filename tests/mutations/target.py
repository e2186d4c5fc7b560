"""What is mutated, and what reads it: a target; and a case, a target with a seed."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from autopar.base.errors import AutoparError
from autopar.cli import main

Step = Sequence[str] | Callable[[], object]
"""A command line, or a function of the Python interface; in the folder of the case."""


LONG = 60
"""Characters of a word from which on it isn't shown as a whole."""


@dataclass(frozen=True)
class Target:
    """A kind of files, how they are mutated, and what reads them.

    Attributes:
        name: As part of a case's name.
        share: How many of all cases are of this target, in relation to other targets.
        prepare: Writes sound files into a folder: once, for all cases.
        mutate: (folder of sound files, folder of the case, chance, whether with knowledge of the
            structure). Writes the case's files and returns what was done.
        steps: What then reads them, in this order until one fails.
        outputs: Names in the case's folder that a step that succeeds may write.
    """

    name: str
    share: int
    prepare: Callable[[Path], None]
    mutate: Callable[[Path, Path, Random, bool], str]
    steps: Callable[[Random], Sequence[Step]]
    outputs: Sequence[str] = ()


@dataclass(frozen=True)
class Case:
    """A mutation, which the target's name and the seed decide alone.

    Every other seed's knows the structure of the file.
    """

    target: Target
    seed: int

    def __str__(self) -> str:
        return f"{self.target.name}:{self.seed}"

    def make(self, prepared: Path, folder: Path) -> tuple[str, Sequence[Step]]:
        """Writes the files into a folder; returns what was done to them and what reads them."""
        chance = Random(str(self))
        done = self.target.mutate(prepared, folder, chance, self.seed % 2 == 0)
        return done, self.target.steps(chance)


def carry_out(step: Step) -> int:
    """Returns the exit code of a step, which is carried out in this process."""
    try:
        return _call(step) if callable(step) else main.main(list(step), prog_name="autopar") or 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


def _call(step: Callable[[], object]) -> int:
    """Returns what a script would end with that shows errors as the command line does."""
    try:
        step()
    except AutoparError as error:
        return _fail(str(error), 1)
    except MemoryError:
        return _fail("there isn't enough memory", 1)
    except Exception:
        traceback.print_exc()
        return 70
    return 0


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def shown(step: Step) -> str:
    """Returns a step as text."""
    if callable(step):
        return getattr(step, "__name__", "a function")
    return " ".join(word if len(word) < LONG else f"{word[:LONG]!r}..." for word in step)


def output_of(step: Step) -> str | None:
    """Returns what a command line was told to write."""
    if callable(step):
        return None
    named = [at + 1 for at, word in enumerate(step) if word in ("-o", "--output")]
    return os.fspath(step[named[-1]]) if named else None
