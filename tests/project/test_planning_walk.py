"""The page about planning: every example is run in its order, and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.walks import ROOT, Walk, differs, steps_of

STEPS = steps_of((ROOT / "docs/planning.md").read_text(encoding="utf-8"))
FIRST = 4
"""How many examples the quick test runs: those about profiles and communication."""


def check(count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asserts that the first examples print what is shown."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    walk = Walk(folder)
    for step in STEPS[:count]:
        found = walk.run(step)
        assert not differs(found, step), f"{step.source}\nprints\n{found}"


def test_the_page_has_examples() -> None:
    assert len(STEPS) >= 15


def test_predictions_are_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(FIRST, tmp_path, monkeypatch)


@pytest.mark.slow
def test_all_examples_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(len(STEPS), tmp_path, monkeypatch)
