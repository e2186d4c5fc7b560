"""State that lives on slices: checkpoints, state dicts, further batches, what is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from autopar import ProcessMesh
from autopar.runtime.api import verify
from autopar.runtime.training.opening import open_trainer
from autopar.runtime.training.trainer import Trainer
from tests.runtime.training.steps import assert_same
from tests.slices.models import (
    CUBE,
    PAIR,
    SQUARE,
    WIDTH,
    Stages,
    Towers,
    adamw,
    batches,
    compiled,
    saved,
    sent,
    trained,
)

X = batches(4, 6, WIDTH)


def stages(mesh: ProcessMesh, parts: list[ProcessMesh], folder: Path) -> Path:
    return saved(compiled(Stages(parts, "tp"), mesh, X[0]), folder)


def test_a_checkpoint_of_slices_is_one_of_any_mesh(tmp_path: Path) -> None:
    model = Stages([PAIR[0], PAIR[1]])
    losses = trained(model, X)
    builds = [
        stages(PAIR, [PAIR[1], PAIR[0]], tmp_path / "pair"),
        stages(SQUARE, [SQUARE[0], SQUARE[1]], tmp_path / "square"),
        stages(CUBE, [CUBE, CUBE], tmp_path / "whole"),
        stages(CUBE, [CUBE["tp", 1], CUBE[0][1]], tmp_path / "cube"),
    ]
    found = []
    for at, build in enumerate(builds):
        with open_trainer(build, virtual=True) as trainer:
            if at:
                trainer.load_checkpoint(tmp_path / f"checkpoint{at - 1}")
            found.append(trainer.step(X[at]).item())
            trainer.save_checkpoint(tmp_path / f"checkpoint{at}")
            last = trainer.state_dict()
    assert found == pytest.approx(losses, rel=1e-5)
    assert_same(last, model.state_dict())


def test_states_go_in_and_out_whole(tmp_path: Path) -> None:
    model = Stages([SQUARE[0], SQUARE[1]], "tp")
    optimizer = adamw(model)
    build = saved(compiled(model, SQUARE, X[0]), tmp_path / "b")
    with open_trainer(build, virtual=True) as trainer:
        for x, target in X[:2]:
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            trainer.step((x, target))
        state = trainer.optimizer_state_dict()["state"]
        for name, parameter in model.named_parameters():
            assert_same(state[name], optimizer.state[parameter])
        trainer.save_weights(tmp_path / "weights.safetensors")
        model_state, optimizer_state = trainer.state_dict(), trainer.optimizer_state_dict()
    assert_same(load_file(tmp_path / "weights.safetensors"), model.state_dict())
    with open_trainer(stages(PAIR, [PAIR[1], PAIR[0]], tmp_path / "other"), virtual=True) as other:
        other.load_state_dict(model_state)
        other.load_optimizer_state_dict(optimizer_state)
        check_steps(other, model, optimizer)


def check_steps(trainer: Trainer, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, target in X[2:]:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert trainer.step((x, target)).item() == pytest.approx(loss.item(), rel=1e-5)


def test_batches_of_several_shapes_share_what_is_on_slices(tmp_path: Path) -> None:
    model, short = Stages([SQUARE[0], SQUARE[1]], "tp"), batches(2, 3, WIDTH)
    build = saved(compiled(model, SQUARE, X[0], more_batches=[short[0]]), tmp_path / "b")
    given = [X[0], short[0], X[1], short[1]]
    losses = trained(model, given)
    with open_trainer(build, virtual=True) as trainer:
        assert [trainer.step(batch).item() for batch in given] == pytest.approx(losses, rel=1e-5)


def test_gradients_are_fetched_from_their_slices(tmp_path: Path) -> None:
    model = Stages([PAIR[0], PAIR[1]])
    fetch = ["layers.0.weight", "layers.1.bias", "grad_norm"]
    done = compiled(model, PAIR, X[0], fetch=fetch, accumulate=2, clip_grad_norm=1e6)
    with open_trainer(saved(done, tmp_path / "b"), virtual=True) as trainer:
        trainer.step(X[0])
        found = dict(trainer.fetched())
    F.mse_loss(model(X[0][0]), X[0][1]).backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    layers = model.layers
    expected = {
        "grad/layers.0.weight": layers[0].weight.grad,
        "grad/layers.1.bias": layers[1].bias.grad,
        "grad_norm": norm,
    }
    assert_same(found, {name: t for name, t in expected.items() if isinstance(t, Tensor)})


@pytest.mark.parametrize("mesh", [PAIR, SQUARE])
def test_every_value_is_verified_where_it_is(tmp_path: Path, mesh: ProcessMesh) -> None:
    given = batches(1, 2, 8, 8)[0]
    done = compiled(Towers(mesh[0], mesh[1]), mesh, given, clip_grad_norm=1.0, strategy="")
    result = verify(saved(done, tmp_path / "b"), dict(zip(("x", "target"), given, strict=True)))
    assert result.ok
    assert {"grad/left.0.weight", "grad/right.0.weight"} <= {each.name for each in result.values}


class Counting(nn.Module):
    """Dropout, batch normalization and a count, each half on its mesh."""

    count: Tensor

    def __init__(self, first: ProcessMesh, second: ProcessMesh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.up(sent(x, self.first, "tp")))
        self.count.add_(1)
        h = F.dropout(sent(h, self.second, "", "tp"), 0.5, self.training)
        return self.down(h)  # type: ignore[no-any-return]


def test_buffers_and_random_numbers_are_those_of_one_rank(tmp_path: Path) -> None:
    found = []
    one = ProcessMesh([0], ["pp"])
    for mesh, parts in ((one, (one, one)), (SQUARE, (SQUARE[1], SQUARE[0]))):
        build = saved(compiled(Counting(*parts), mesh, X[0]), tmp_path / str(mesh.size))
        with open_trainer(build, virtual=True) as trainer:
            losses = [trainer.step(batch).item() for batch in X]
            found.append((losses, trainer.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert_same(found[1][1], found[0][1])
    assert found[1][1]["count"] == 4
