"""The README's walk: every command is run as printed, and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.given.models import model_path
from tests.project.walks import ROOT, Walk, differs, steps_of


@pytest.mark.models
def test_the_walk_prints_what_is_shown(tmp_path: Path) -> None:
    model_path("minilm")
    steps = steps_of((ROOT / "README.md").read_text())
    assert len(steps) >= 5
    walk = Walk(tmp_path)
    for step in steps:
        found = walk.run(step)
        assert not differs(found, step), f"{step.source}\nprints\n{found}"
