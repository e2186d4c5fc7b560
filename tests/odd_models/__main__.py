"""Compiles odd models, each in a process of its own within limits, and prints what became of them.

python -m tests.odd_models [NAME]...
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tests.mutations.isolated import Outcome, carry_out_all
from tests.mutations.target import Case, Target, carry_out
from tests.odd_models.makers import changed
from tests.odd_models.table import TABLE

COMMAND = ("compile", "model.onnx", "--mesh", "2", "--strategy", "none", "-o", "build", "-q")


def target(name: str) -> Target:
    """What compiles a model of the table."""

    def write(prepared: Path, folder: Path, chance: Random, structure: bool) -> str:
        del prepared, chance, structure
        (folder / "model.onnx").write_bytes(TABLE[name].make().SerializeToString())
        return name

    return Target(name, 1, lambda _: None, write, lambda _: (COMMAND,), ("build",))


def ended(outcome: Outcome) -> dict[str, object]:
    """Returns what became of a model, in words for JSON."""
    return {
        "name": outcome.case.target.name,
        "code": outcome.steps[-1][1] if outcome.steps else None,
        "failures": outcome.failures,
        "seconds": round(outcome.seconds, 2),
        "MiB": outcome.bytes >> 20,
        "text": outcome.text,
    }


def warm_up(folder: Path) -> None:
    """Compiles a sound model here: then what is forked has all modules, and torch's tables."""
    (folder / "sound.onnx").write_bytes(changed(lambda _: None)().SerializeToString())
    build = ["-o", str(folder / "sound")]
    assert carry_out(["compile", str(folder / "sound.onnx"), *COMMAND[2:-3], *build, "-q"]) == 0


def main(names: Iterable[str]) -> None:
    """Prints a line of JSON per model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm_up(folder)
        for outcome in carry_out_all((Case(target(each), 0) for each in names), folder):
            print(json.dumps(ended(outcome)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or TABLE)
