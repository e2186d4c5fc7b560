"""Slices of a mesh: what is marked for one runs there alone, with the results of one device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import ProcessMesh
from autopar.analysis.reports.inspection import show_rank
from autopar.base.errors import AnnotationError
from autopar.runtime.api import run
from autopar.runtime.training.opening import open_trainer
from tests.runtime.execute.targets import run_program, train
from tests.runtime.job.real import run_ranks
from tests.runtime.training.steps import assert_same
from tests.slices.models import (
    CUBE,
    PAIR,
    SQUARE,
    TALL,
    THREE,
    Batch,
    Stages,
    Towers,
    batches,
    compiled,
    saved,
    sent,
    trained,
)

CASES: dict[str, tuple[ProcessMesh, Sequence[ProcessMesh], tuple[str, ...]]] = {
    "2": (PAIR, [PAIR[0], PAIR[1]], ()),
    "there and back": (PAIR, [PAIR[1], PAIR[0], PAIR[1]], ()),
    "3, one left out": (THREE, [THREE[2], THREE[0]], ()),
    "2x2": (SQUARE, [SQUARE[0], SQUARE[1]], ("tp",)),
    "2x2, columns": (SQUARE, [SQUARE["tp", 1], SQUARE["tp", 0]], ("pp",)),
    "crossing": (SQUARE, [SQUARE["pp", 0], SQUARE["tp", 1]], ("tp",)),
    "slice and whole": (SQUARE, [SQUARE[1], SQUARE, SQUARE[0]], ("tp", "pp")),
    "3x2, features": (TALL, [TALL[0], TALL[2], TALL[1]], ("", "tp")),
    "nested": (CUBE, [CUBE[0], CUBE[0]["dp", 1], CUBE["tp", 1]["pp", 1]], ("dp", "tp")),
    "2x2x2": (CUBE, [CUBE[1], CUBE["dp", 0], CUBE[0][1][1]], ("tp",)),
}
X = batches(3, 6, 8)


def check_forward(model: nn.Module, mesh: ProcessMesh, folder: Path, **options: str | None) -> None:
    x = X[0][0]
    autopar.compile(model, x, mesh=mesh, **options).save(folder)  # type: ignore[arg-type]
    found = run(folder, {"x": x}, virtual=True)["output"]
    assert_same({"output": found}, {"output": model(x)})


def test_ranks_are_shown_with_the_groups_that_they_are_in(tmp_path: Path) -> None:
    """Of three stages, each passes on to one: who sends comes first."""
    model = Stages([TALL[0], TALL[2], TALL[1]], "", "tp")
    autopar.compile(model, X[0][0], mesh=TALL).save(tmp_path / "build")
    shown = [show_rank(tmp_path / "build", rank, "text").splitlines() for rank in (0, 2, 4)]
    groups = [[line for line in each if line.startswith("# group pp")] for each in shown]
    everybody = "# group pp: ranks 0, 2, 4"
    assert groups == [
        [everybody, "# group pp:0-2: ranks 0, 4"],
        [everybody, "# group pp:2-1: ranks 4, 2"],
        [everybody, "# group pp:0-2: ranks 0, 4", "# group pp:2-1: ranks 4, 2"],
    ]


@pytest.mark.parametrize("strategy", [None, ""])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_one_device(tmp_path: Path, case: str, strategy: str | None) -> None:
    mesh, places, mapping = CASES[case]
    check_forward(Stages(places, *mapping), mesh, tmp_path / "b", strategy=strategy)


def check_training(
    model: nn.Module, mesh: ProcessMesh, folder: Path, given: Sequence[Batch], **options: object
) -> None:
    build = saved(compiled(model, mesh, given[0], **options), folder)
    losses = trained(model, given, options.get("clip_grad_norm"))  # type: ignore[arg-type]
    with open_trainer(build, virtual=True) as trainer:
        assert [trainer.step(batch).item() for batch in given] == pytest.approx(losses, rel=1e-5)
        assert_same(trainer.state_dict(), model.state_dict())


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_one_device(tmp_path: Path, case: str, clip: float | None) -> None:
    mesh, places, mapping = CASES[case]
    check_training(Stages(places, *mapping), mesh, tmp_path / "b", X, clip_grad_norm=clip)


@pytest.mark.parametrize("mesh", [PAIR, SQUARE, THREE])
def test_towers_train_as_on_one_device(tmp_path: Path, mesh: ProcessMesh) -> None:
    given = batches(3, 2, 8, 8)
    check_training(Towers(mesh[0], mesh[1]), mesh, tmp_path / "b", given, clip_grad_norm=0.5)


class Encoder(nn.Module):
    """A table, two layers in stages, and a head that is tied to the table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).layers

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(sent(ids, CUBE[0], "dp"))
        for layer, place in zip(self.layers, (CUBE[0], CUBE[1]), strict=True):
            x = layer(sent(x, place, "dp"))
        return F.linear(x, self.table.weight)


@pytest.mark.parametrize("strategy", ["fsdp:pp", "tensor:tp,sequence:tp", "fsdp:dp,tensor:tp"])
def test_presets_work_on_slices(tmp_path: Path, strategy: str) -> None:
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 12, (4, 6), generator=drawn)
    batch = ids, torch.randn(4, 6, 12, generator=drawn)
    model = Encoder()
    build = saved(compiled(model, CUBE, batch, strategy=strategy), tmp_path / "b")
    losses = trained(model, [batch] * 3)
    with open_trainer(build, virtual=True) as trainer:
        assert [trainer.step(batch).item() for _ in losses] == pytest.approx(losses, rel=1e-5)


def test_a_preset_that_fits_no_slice_is_an_error() -> None:
    model = Stages([SQUARE[0], SQUARE[1]])
    with pytest.raises(AnnotationError, match="strategy expert:tp"):
        compiled(model, SQUARE, X[0], strategy="expert:tp")


def test_two_processes_run_a_layer_each(tmp_path: Path) -> None:
    model, x = Stages([PAIR[0], PAIR[1]]), X[0][0]
    autopar.compile(model, x, mesh=PAIR).save(tmp_path / "b")
    (whole, _), (nothing, _) = run_ranks(2, run_program, [tmp_path / "b"], {"x": x})
    assert_same({"output": torch.from_numpy(whole["output"])}, {"output": model(x)})
    assert not nothing


def test_two_processes_train_a_layer_each(tmp_path: Path) -> None:
    model = Stages([PAIR[0], PAIR[1]])
    build = saved(compiled(model, PAIR, X[0]), tmp_path / "b")
    outcomes = run_ranks(2, train, build, X, tmp_path)
    losses = trained(model, X)
    for found, state, _ in outcomes:
        assert found == pytest.approx(losses, rel=1e-5)
        assert_same({k: torch.from_numpy(v) for k, v in state.items()}, model.state_dict())


@pytest.mark.slow
def test_four_processes_train_two_towers(tmp_path: Path) -> None:
    model, given = Towers(SQUARE[0], SQUARE["tp", 1]), batches(3, 2, 8, 8)
    options = {"clip_grad_norm": 0.5, "strategy": ""}
    build = saved(compiled(model, SQUARE, given[0], **options), tmp_path / "b")
    outcomes = run_ranks(4, train, build, given, tmp_path)
    losses = trained(model, given, 0.5)
    for found, state, _ in outcomes:
        assert found == pytest.approx(losses, rel=1e-5)
        assert_same({k: torch.from_numpy(v) for k, v in state.items()}, model.state_dict())


@pytest.mark.slow
def test_the_example_compares_equal() -> None:
    example = Path(__file__).parents[2] / "examples/two_towers.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("equal\n")
