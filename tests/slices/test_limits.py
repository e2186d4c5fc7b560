"""Limits of memory where ranks of several kinds run the same ops, each on slices of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autopar import ProcessMesh
from autopar.annotate import shard_mask
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline
from autopar.ir.parts import programs_of
from autopar.partition.recompute import DoesNotFit
from autopar.runtime.training.opening import open_trainer
from tests.slices.models import WIDTH, batches, compiled, saved, trained

MESH = ProcessMesh([[0, 1], [2, 3]], ["dp", "tp"])
X = batches(2, 64, WIDTH)


class Around(nn.Module):
    """Layers on all of the mesh, around some on a part of it and some on the rest."""

    def __init__(self, mask: list[list[int]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.one, self.other, self.behind = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for _ in range(4)
        )
        self.mask, self.rest = mask, [[1 - held for held in row] for row in mask]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.before:
            x = torch.sin(torch.tanh(layer(x)))
        y, z = shard_mask(x, self.mask), shard_mask(x, self.rest)
        for one, other in zip(self.one, self.other, strict=True):
            y, z = torch.sin(torch.tanh(one(y))), torch.sin(torch.tanh(other(z)))
        x = x + y + z
        for layer in self.behind:
            x = torch.sin(torch.tanh(layer(x)))
        return x


def peak_bytes(found: CompiledModel) -> int:
    """Returns the most bytes that any rank holds, each at its own place on the mesh."""
    return max(memory_timeline(*kind).peak_bytes for kind in programs_of(found.partitioned).kinds)


@pytest.mark.parametrize("strategy", [None, "data:dp", "fsdp:dp", "tensor:tp"])
@pytest.mark.parametrize("mask", [[[1, 0], [1, 0]], [[0, 0], [1, 1]]], ids=str)
def test_the_least_that_is_promised_is_held(
    mask: list[list[int]], strategy: str | None, tmp_path: Path
) -> None:
    model = Around(mask)
    with pytest.raises(DoesNotFit) as miss:
        compiled(model, MESH, X[0], strategy=strategy, memory=1)
    found = compiled(model, MESH, X[0], strategy=strategy, memory=miss.value.least_bytes)
    assert peak_bytes(found) <= miss.value.least_bytes
    build, losses = saved(found, tmp_path / "build"), trained(model, X)
    with open_trainer(build, virtual=True) as trainer:
        assert [trainer.step(batch).item() for batch in X] == pytest.approx(losses, rel=1e-5)
