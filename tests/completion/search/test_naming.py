"""Plans are named by what most of their products split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autopar


class Tokens(nn.Module):
    """A product over tokens of sequences, whose batch is a part of a flattened dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, sequence, 64] to the same."""
        rows = x.reshape(-1, 64)
        moved: torch.Tensor = self.down(torch.relu(self.up(rows)))
        return moved.reshape(x.shape)


@pytest.mark.parametrize(
    ("length", "name", "layout", "word"),
    [
        (4096, "x", ["d0", -1, -1], "data"),
        (4096, "x", [-1, "d0", -1], "context"),
        (1, "up.weight", ["d0", -1], "tensor"),
    ],
)
def test_a_plan_has_the_name_of_what_is_pinned(
    length: int, name: str, layout: list[str | int], word: str
) -> None:
    with torch.device("meta"):
        module = Tokens().eval()
        batch = (torch.zeros(6, length, 64),)
    found = autopar.compile(module, batch, mesh="2", shard={name: layout})
    assert f"d0: {word}" in found.summary()


PRODUCTS_WHOLE = "ops:\n  - of: ['*addmm*']\n    split: {}\n"
RELU_SPLIT = "  - of: ['*relu*']\n    split: {i0: d0}\n"


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        ("shard: {x: [-1, -1, -1]}\n" + PRODUCTS_WHOLE, "replicate"),
        (PRODUCTS_WHOLE + RELU_SPLIT, "mixed"),
    ],
)
def test_an_axis_that_splits_no_product(plan: str, word: str, tmp_path: Path) -> None:
    """It splits nothing, as the preset says, or some of what lies between products."""
    (tmp_path / "plan.yaml").write_text(plan)
    with torch.device("meta"):
        module, batch = Tokens().eval(), (torch.zeros(6, 1, 64),)
    found = autopar.compile(module, batch, mesh="2", plan=tmp_path / "plan.yaml")
    assert f"d0: {word}\n" in found.summary()


def test_a_program_without_products() -> None:
    found = autopar.compile(nn.ReLU(), torch.zeros(6, 64), mesh="2", shard={"input": ["d0", -1]})
    assert "d0: activations\n" in found.summary()
