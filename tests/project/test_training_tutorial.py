"""The tutorial: every example is run in its order, and prints what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.project.walks import ROOT, Step, Walk, differs, steps_of

PAGE = (ROOT / "docs/training.md").read_text(encoding="utf-8")
COMMANDS = [step for step in steps_of(PAGE) if step.kind == "console"]
STATEMENTS = [step for step in steps_of(PAGE) if step.kind == "pycon"]
TRAINED = next(at for at, step in enumerate(COMMANDS) if step.source.startswith("torchrun"))
"""How many commands lead from the plain script to processes that train, as the README's do."""

OF_README = steps_of((ROOT / "README.md").read_text(encoding="utf-8"))
"""What another walk runs."""


def check(steps: Sequence[Step], folder: Path) -> None:
    """Asserts that examples print what is shown."""
    walk = Walk(folder)
    for step in steps:
        found = walk.run(step)
        assert not differs(found, step), f"{step.source}\nprints\n{found}"


def test_the_tutorial_has_both_kinds_of_examples() -> None:
    assert len(COMMANDS) >= 8
    assert len(STATEMENTS) >= 40


def test_commands_print_what_is_shown(tmp_path: Path) -> None:
    check([step for step in COMMANDS[:TRAINED] if step not in OF_README], tmp_path)


@pytest.mark.slow
def test_all_commands_print_what_is_shown(tmp_path: Path) -> None:
    check(COMMANDS, tmp_path)


def test_statements_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    check(STATEMENTS, tmp_path)


def test_a_page_may_leave_out_items_of_a_list() -> None:
    step = Step("pycon", "", "only a, b, ..., or z; did you mean z?\n")
    assert not differs("only a, b, c, d, or z; did you mean z?\n", step)
    assert differs("only a, c, d, or z; did you mean z?\n", step)
    assert differs("only a, b, c, or z; did you mean c?\n", step)
