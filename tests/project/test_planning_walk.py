"""The page about planning: every example is run in its order, and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.walks import ROOT, Step, Walk, differs, steps_of

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


def test_what_is_measured_may_be_warned_of() -> None:
    """As on a machine that has other work; on one that hasn't there is no warning."""
    shown = "memory     11.4 GB/s\n\nWarning: 4 of 6 fits are off,\nas where programs run.\n"
    step = Step("console", "autopar calibrate", shown, is_measured=True)
    assert not differs("memory     20.9 GB/s\n", step)
    assert not differs("memory     9 GB/s\n\nWarning: 1 of 6 fits is off.\n", step)
    assert differs("links     20.9 GB/s\n", step)


def test_predictions_are_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(FIRST, tmp_path, monkeypatch)


@pytest.mark.slow
def test_all_examples_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(len(STEPS), tmp_path, monkeypatch)
