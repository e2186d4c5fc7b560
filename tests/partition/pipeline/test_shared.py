"""What stages of a pipeline share: parameters, and how a tensor lies that is sent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.cli.commands import main
from autopar.ir.collectives import is_collective
from autopar.ir.program import known_sizes
from tests.partition.pipeline.models import (
    Decoder,
    batch_of,
    compiled,
    on_one_device,
    on_virtual_mesh,
)

WORDS = 16


def sent(model: autopar.CompiledModel) -> Counter[tuple[str, tuple[int, ...]]]:
    """Returns how often each phase moves tensors of each shape between ranks."""
    programs = model.deployment.programs
    moves = {
        op.results[0]: (op.phase, known_sizes(program.main.values[op.operands[0]].shape, ""))
        for program in programs
        for op in program.main.ops
        if is_collective(op.kind)
    }
    return Counter(moves.values())


@pytest.mark.parametrize("microbatches", [2, 6])
def test_the_gradient_of_a_tied_parameter_is_sent_once(microbatches: int) -> None:
    model = compiled(Decoder(2, tied=True), microbatches, mesh="pp=2", strategy=None)
    table, logits = (WORDS, 8), {(10, WORDS), (2, 5, WORDS)}
    moved = sent(model)
    assert not any(shape in logits for _, shape in moved)
    # The table goes to each stage, once, and its gradient comes back.
    assert sum(count for (_, shape), count in moved.items() if shape == table) <= 3


def test_it_is_that_of_one_device(tmp_path: Path) -> None:
    model = Decoder(3, layers=6, tied=True, skips=True)
    step = compiled(model, 4, mesh="pp=3,dp=2")
    step.save(tmp_path)
    losses = on_virtual_mesh(tmp_path, batch_of(8))
    assert losses == pytest.approx(on_one_device(model, 4), rel=1e-5)


class Twice(nn.Module):
    """A layer that both stages have."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(WORDS, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layer(self.tokens(ids)).tanh()
        with annotate.pipeline_stage(1):
            return self.head(self.layer(x).tanh())


@pytest.mark.parametrize("pin", [["dp", -1], [-1, "dp"], ["dp"]])
def test_what_follows_from_a_pin_may_split_what_stages_share(
    pin: list[str | int], tmp_path: Path
) -> None:
    """A bias is split as its weight is, on each stage that reads it."""
    torch.manual_seed(0)
    model, name = Twice(), "layer.weight" if len(pin) > 1 else "layer.bias"
    step = compiled(model, 3, mesh="pp=2,dp=2", strategy=None, shard={name: pin})
    step.save(tmp_path)
    losses = on_virtual_mesh(tmp_path, batch_of(6))
    assert losses == pytest.approx(on_one_device(model, 3), rel=1e-5)


def test_stages_agree_on_how_what_is_sent_lies() -> None:
    """Stages that were planned one after another had to gather what the ones before had split."""
    model = compiled(Decoder(4, layers=8), 3, mesh="pp=4,tp=2", schedule="gpipe")
    kinds = Counter(
        op.kind
        for program in model.deployment.programs
        for function in program.functions.values()
        for op in function.ops
        if is_collective(op.kind)
    )
    assert set(kinds) == {"comm.broadcast"}
    assert "plan     on pp=0 to pp=3:" in model.summary()


@pytest.mark.parametrize("options", [{"mesh": "pp=2"}, {"mesh": "pp=3", "stages": (2, 1)}])
def test_what_is_brought_to_stages_is_explained(options: dict[str, Any], tmp_path: Path) -> None:
    compiled(Decoder(2, tied=True), 3, **options).save(tmp_path / "build")
    for name in ("tokens.weight", "layers.0.weight"):
        result = CliRunner().invoke(main, ["explain", str(tmp_path / "build"), name])
        assert result.exit_code == 0, result.output
        assert "as it is" in result.output
