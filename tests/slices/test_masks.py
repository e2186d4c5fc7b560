"""Masks of a 2x3 mesh: boxes are carried out, others are refused with the nearest of these."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.annotate import ProcessMesh
from autopar.base.errors import AnnotationError

MESH = ProcessMesh([[0, 1, 2], [3, 4, 5]], ["dp", "tp"])
MASKS = [[list(bits[:3]), list(bits[3:])] for bits in product((0, 1), repeat=6) if any(bits)]
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def ids_of(mask: list[list[int]]) -> list[int]:
    return [at for at, bit in enumerate(bit for row in mask for bit in row) if bit]


def is_box(mask: list[list[int]]) -> bool:
    """Whether a mask is a set of rows times a set of columns: rows with any bit are alike."""
    return len({tuple(row) for row in mask if any(row)}) == 1


PARTS = ((), *([(axis, at)] for axis, size in MESH.axis_sizes().items() for at in range(size)))
SLICES = {tuple(MESH.at([*one, *other]).process_ids) for one in PARTS for other in PARTS}
EXECUTED = [mask for mask in MASKS if is_box(mask)]
REFUSED = [mask for mask in MASKS if not is_box(mask)]
BOXES = {tuple(ids_of(mask)) for mask in EXECUTED}


class Masked(nn.Module):
    """Three layers, of which the second one follows from a masked tensor."""

    def __init__(self, mask: list[list[int]] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.layers
        h = first(x).tanh()
        if self.mask is not None:
            h = annotate.shard_mask(h, self.mask)
        y: Tensor = third(second(h).tanh() + x)
        return y


def compiled(mask: list[list[int]], strategy: str | None = "none") -> Any:
    model = Masked(mask)
    return autopar.compile(
        model,
        (X, X),
        mesh=MESH,
        strategy=strategy,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.Adam(model.parameters(), 0.1),
    )


def serially_trained() -> tuple[list[float], dict[str, Tensor]]:
    model, losses = Masked(None), []
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), X)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def test_which_masks_are_boxes() -> None:
    """One of two rows or both, with any of three columns; those with one or all are slices."""
    assert (len(EXECUTED), len(REFUSED)) == (21, 42)
    assert len(SLICES) == 12
    assert BOXES > SLICES


@pytest.mark.parametrize("mask", EXECUTED, ids=str)
def test_a_masked_step_trains_as_on_one_device(mask: list[list[int]], tmp_path: Path) -> None:
    found = compiled(mask)
    dist = found.serial.main.values["tanh"].dist
    moved = [v for v in found.serial.main.values.values() if v.dist and v.dist.mesh != MESH]
    assert dist is not None
    assert bool(moved) == (len(ids_of(mask)) < 6)
    assert {p for v in moved for p in v.dist.mesh.process_ids} <= set(ids_of(mask))
    found.save(tmp_path / "build")
    losses, state = serially_trained()
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        assert [trainer.step((X, X)).item() for _ in losses] == pytest.approx(losses, rel=1e-5)
        for name, tensor in trainer.state_dict().items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mask", [EXECUTED[0], EXECUTED[5]], ids=str)
def test_masks_with_a_strategy(mask: list[list[int]], tmp_path: Path) -> None:
    compiled(mask, "data:dp").save(tmp_path / "build")
    losses, _ = serially_trained()
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        assert [trainer.step((X, X)).item() for _ in losses] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("mask", REFUSED[::6], ids=str)
def test_other_masks_are_refused_with_the_nearest_box(mask: list[list[int]]) -> None:
    line = Masked.forward.__code__.co_firstlineno + 4
    with pytest.raises(AnnotationError, match=rf"test_masks\.py:{line}: shard_mask") as error:
        compiled(mask)
    nearest = json.loads(str(error.value).rsplit("of the mesh, ", 1)[1].split(" (")[0])
    differences = [len(set(ids_of(mask)) ^ set(each)) for each in BOXES if len(each) < 6]
    assert tuple(ids_of(nearest)) in BOXES
    assert len(set(ids_of(mask)) ^ set(ids_of(nearest))) == min(differences)
