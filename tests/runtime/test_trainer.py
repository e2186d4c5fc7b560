"""Training: the losses and the state of one device on any mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.runtime.trainer import open_trainer
from tests.runtime.training import Reference, batches, layouts, training_build


@pytest.mark.parametrize(("mesh", "strategy", "shards"), list(layouts()))
def test_losses_are_those_of_one_device(
    tmp_path: Path, mesh: str, strategy: str, shards: tuple[str, ...]
) -> None:
    build = training_build(tmp_path / "b", mesh, strategy, *shards)
    one = Reference.of_seed()
    with open_trainer(build, virtual=True) as trainer:
        for batch in batches(5):
            expected = one.step(batch)
            assert trainer.step(batch).item() == pytest.approx(expected, rel=1e-5)
    assert trainer.steps == 5
