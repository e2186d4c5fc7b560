"""The design page: its example is walked through all stages, and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.walks import ROOT, Walk, differs, steps_of

STEPS = steps_of((ROOT / "docs/design.md").read_text(encoding="utf-8"))


def test_the_example_has_both_kinds_of_steps() -> None:
    assert {step.kind for step in STEPS} == {"console", "pycon"}


def test_the_example_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    walk = Walk(tmp_path)
    for step in STEPS:
        found = walk.run(step)
        assert not differs(found, step), f"{step.source}\nprints\n{found}"
