"""Models whose loss aligns sequences train on meshes as on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar


class Speech(nn.Module):
    """Classes of steps, whose loss is that of texts without what is padded."""

    def __init__(self, rows: bool, reduction: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 7)
        self.rows = rows
        self.reduction = reduction

    def forward(self, x: Tensor, text: Tensor, lengths: Tensor) -> Tensor:
        scores = self.layer(x).log_softmax(-1).transpose(0, 1)
        is_text = text >= 0
        targets = text.clamp(min=1) if self.rows else text.masked_select(is_text)
        options = {"reduction": self.reduction, "zero_infinity": self.rows}
        return F.ctc_loss(scores, targets, lengths, is_text.sum(-1), **options).sum()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Returns steps, texts of which one is shorter, and how many steps count."""
    torch.manual_seed(1)
    text = torch.randint(1, 7, (5, 4))
    text[1, 3:] = -100
    return torch.randn(5, 12, 8).double(), text, torch.tensor([12, 11, 10, 12, 9])


@pytest.mark.parametrize(
    ("rows", "reduction"), [(True, "mean"), (False, "mean"), (True, "sum"), (False, "none")]
)
def test_losses_of_alignments_are_split(tmp_path: Path, rows: bool, reduction: str) -> None:
    model = Speech(rows, reduction).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = autopar.compile(
        model, batch(), mesh="a=2,b=2", strategy="fsdp:a,data:b", optimizer=optimizer
    )
    assert not [each for each in found.report if each.category == "undivided"]
    found.save(tmp_path / "build")
    expected = model(*batch())
    expected.backward()
    optimizer.step()
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        torch.testing.assert_close(trainer.step(batch()), expected.detach())
        for name, tensor in trainer.state_dict().items():
            torch.testing.assert_close(tensor, model.state_dict()[name])


class Halved(nn.Module):
    """Computes the loss of a model with autocast, as torch's own op does it in 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.speech = Speech(rows=True, reduction="mean")

    def forward(self, x: Tensor, text: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss: Tensor = self.speech(x, text, lengths)
        return loss


def test_losses_under_autocast() -> None:
    model, (x, *rest) = Halved(), batch()
    expected = model(x.float(), *rest)
    module = autopar.parallelize(model, (x.float(), *rest), mesh="1")
    torch.testing.assert_close(module(x.float(), *rest), expected)
