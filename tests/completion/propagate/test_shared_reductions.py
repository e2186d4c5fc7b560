"""Pending sums that meet are priced as one reduction: the gradient of a tied table."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.judges import captured

VOCABULARY, SIZE = 4096, 64


class Tied(nn.Module):
    """A language model whose head is its table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.inner = nn.Linear(SIZE, SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return self.norm(x + self.inner(x)) @ self.table.weight.t()


def training(batch: int) -> captured.Captured:
    """Captures the loss and the gradients."""
    model = Tied()
    generator = torch.Generator().manual_seed(0)

    def step(parameters: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
        logits = torch.func.functional_call(model, leaves, (inputs["ids"],))
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), inputs["labels"].view(-1))
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return {"loss": loss, **dict(zip(leaves, gradients, strict=True))}

    ids = torch.randint(0, VOCABULARY, (2, batch, 16), generator=generator)
    return captured.capture(step, model.state_dict(), {"ids": ids[0], "labels": ids[1]})


@pytest.mark.parametrize(("mesh", "batch"), [("dp=4", 8), ("dp=3", 8), ("dp=2", 7)])
def test_the_gradient_of_a_tied_table_is_reduced_once(mesh: str, batch: int) -> None:
    source = training(batch)
    done = captured.compiled(source, mesh, "data:0")
    captured.check(source, done, 1e-4)
    found = captured.collectives(done)
    assert Counter(one.kind for one in found).keys() == {"all_reduce"}
    # Joined with other reductions or alone, but not twice.
    table = VOCABULARY * SIZE
    assert table <= sum(math.prod(one.shape) for one in found) < 1.2 * table
