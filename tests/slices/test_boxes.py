"""Boxes: what is at several indices of an axis moves there and back, trains, and is stored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar import ProcessMesh
from autopar.annotate import shard_mask
from autopar.annotate.nearest_box import nearest_box
from autopar.base.errors import AnnotationError
from autopar.ir.fixed import Fixed, holds
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.runtime.api import run
from autopar.runtime.training.opening import open_trainer
from tests.runtime.execute.targets import train
from tests.runtime.job.real import run_ranks
from tests.slices.models import WIDTH, batches, compiled, saved, trained

MESH = ProcessMesh([[0, 1, 2], [3, 4, 5]], ["dp", "tp"])
SETS = [[s for s in range(3) if bits >> s & 1] for bits in range(1, 8)]
BOXES: list[Fixed] = [
    (("dp", tuple(rows)), ("tp", tuple(columns))) for rows, columns in product(SETS[:3], SETS)
]
DRAWN = random.Random(0)
CHAINS = [DRAWN.sample(BOXES, 3) for _ in range(8)]
X = batches(2, 7, WIDTH)


def mask_of(box: Fixed) -> list[list[int]]:
    return [[int(holds(box, {"dp": row, "tp": at})) for at in range(3)] for row in range(2)]


class Chain(nn.Module):
    """Layers one after another, each on what is sent to a box; the last one sees all of them."""

    def __init__(self, boxes: Sequence[Fixed]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in boxes)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.masks = [mask_of(box) for box in boxes]

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for layer, mask in zip(self.layers, self.masks, strict=True):
            x = torch.tanh(layer(shard_mask(x * 1.5, mask)))
            total = total + x
        y: Tensor = self.last(total)
        return y


def test_box_by_its_indices() -> None:
    part = MESH.at([("tp", (0, 2))])
    assert (part.shape, part.process_ids, part.place) == ((2,), (0, 2, 3, 5), "tp=0+2")
    assert [part.coordinates(at)["tp"] for at in range(4)] == [0, 2, 0, 2]
    assert part["dp", 1].process_ids == (3, 5)
    assert part["dp", 1] == MESH.box("tp", [2, 0])["dp", 1]
    assert MESH.box("tp", [1]) == MESH["tp", 1]
    assert MESH.box("tp", range(3)) == MESH
    assert MESH.box_with((0, 2, 3, 5)) == part
    assert MESH.box_with((0, 2, 3)) is None
    for indices in ([], [0, 3], [-1, 0]):
        with pytest.raises(AnnotationError, match="are not of axis 'tp'"):
            MESH.box("tp", indices)


@pytest.mark.parametrize("shape", [(2, 3), (2, 2, 2), (5,), (1, 4)])
def test_the_nearest_box_is_the_nearest(shape: tuple[int, ...]) -> None:
    mesh = ProcessMesh.of_shape(shape)
    sets = [
        [tuple(s for s in range(n) if bits >> s & 1) for bits in range(1, 1 << n)] for n in shape
    ]
    boxes = [mesh.at(zip(mesh.dim_names, each, strict=True)) for each in product(*sets)]
    for bits in range(1, (1 << mesh.size) - 1):
        mask = {process for process in mesh.ids if bits >> process & 1}
        found = nearest_box(mesh, mask)
        assert found != mesh
        assert len(mask ^ set(found.ids)) == min(len(mask ^ set(b.ids)) for b in boxes if b != mesh)


def test_near_boxes_of_large_meshes() -> None:
    mesh = ProcessMesh.of_shape((64, 64))
    row = mesh[3]
    assert nearest_box(mesh, row.ids[1:]).ids == row.ids[1:]


@pytest.mark.parametrize("strategy", ["none", "data:dp", "tensor:tp"])
@pytest.mark.parametrize("chain", CHAINS[:4], ids=str)
def test_results_are_those_of_one_device(chain: list[Fixed], strategy: str, tmp_path: Path) -> None:
    model, x = Chain(chain), X[0][0]
    autopar.compile(model, x, mesh=MESH, strategy=strategy).save(tmp_path / "build")
    found = run(tmp_path / "build", {"x": x}, virtual=True)["output"]
    torch.testing.assert_close(found, model(x))


@pytest.mark.parametrize("strategy", [None, "data:dp"])
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_training_is_that_of_one_device(
    chain: list[Fixed], strategy: str | None, tmp_path: Path
) -> None:
    model = Chain(chain)
    build = saved(compiled(model, MESH, X[0], strategy=strategy), tmp_path / "build")
    losses = trained(model, X)
    with open_trainer(build, virtual=True) as trainer:
        assert [trainer.step(batch).item() for batch in X] == pytest.approx(losses, rel=1e-5)
        for name, tensor in trainer.state_dict().items():
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_programs_on_boxes_are_stored_and_shown() -> None:
    done = compiled(Chain([(("tp", (0, 2)),), (("dp", 1), ("tp", (0, 1)))]), MESH, X[0])
    for program in (done.serial,):
        text = print_program(program)
        assert "on mesh[tp=0+2]" in text
        assert parse_program(text) == program
        assert program_from_bytes(program_to_bytes(program)) == program
    assert "tp=0+2" in str(done.summary())


def test_six_processes_train_on_boxes(tmp_path: Path) -> None:
    model = Chain([(("tp", (0, 2)),), (("tp", (1, 2)),), (("dp", 1), ("tp", (0, 1)))])
    build = saved(compiled(model, MESH, X[0]), tmp_path / "build")
    outcomes = run_ranks(6, train, build, X, tmp_path)
    losses = trained(model, X)
    for found, state, _ in outcomes:
        assert found == pytest.approx(losses, rel=1e-5)
        for name, array in state.items():
            torch.testing.assert_close(
                torch.from_numpy(array), model.state_dict()[name], rtol=1e-4, atol=1e-5
            )


def test_a_box_along_the_axis_of_a_pipeline_is_refused() -> None:
    with pytest.raises(AnnotationError, match=r"several indices of 'tp', the axis of the pipeline"):
        compiled(Chain([(("tp", (0, 2)),)]), MESH, X[0], pipeline="tp", accumulate=2)
