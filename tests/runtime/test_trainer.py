"""Training: the losses and the state of one device on any mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.runtime.trainer import open_trainer
from tests.runtime.training import LAYOUTS, Layout, Reference, batches, training_build


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_one_device(tmp_path: Path, layout: Layout) -> None:
    build = training_build(tmp_path / "b", layout)
    one = Reference.of_seed()
    with open_trainer(build, virtual=True) as trainer:
        for batch in batches(5):
            assert trainer.step(batch).item() == pytest.approx(one.step(batch), rel=1e-5)
    assert trainer.steps == 5
