"""A loop over microbatches as one op: what it is, takes and computes, however often it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.annotate import parse_mesh
from autopar.compiled import CompiledModel
from autopar.cost import memory_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.ir.program import REPEAT, Op, Program
from autopar.runtime.training.stepping import seed_of_step
from tests.end_to_end.test_loops import Carrying
from tests.judges.compiled_bodies import bodies_compiled
from tests.judges.steps import Steps
from tests.judges.tracking import executed

CLASSES, WIDTH, LENGTH = 13, 8, 6


class Net(nn.Module):
    """Attention, normalization by batches and dropout before a tied head."""

    def __init__(self, dropout: float = 0.3, counts: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if counts else nn.Identity()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.tokens.weight
        self.dropout = dropout

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        h = self.norm(h.transpose(1, 2)).transpose(1, 2)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = h + self.down(F.dropout(F.gelu(self.up(h)), self.dropout))
        logits: Tensor = self.head(h)
        return logits


class Handing(nn.Module):
    """Large buffers change places from microbatch to microbatch, and what is returned is large."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.net = Net(0.0, counts=False)
        for name in ("first", "second", "third"):
            self.register_buffer(name, torch.ones(64, 64))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids) + self.first.mean() + self.second.sum() * self.third.max()
        first, second = self.first.clone(), self.second.clone()
        self.first, self.second = second, first * self.weight.detach()
        return logits


class Spreading(nn.Module):
    """What is returned takes more than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CLASSES, 1))

    def forward(self, ids: Tensor) -> Tensor:
        return (ids[..., None] * self.weight.view(-1)).sin()[:, :, None, :].expand(-1, -1, 40, -1)


def spread(out: Tensor, target: Tensor) -> Tensor:
    return (out.mean((2, 3)) - target).square().mean()


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=3)


def batch_of(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids, target = (torch.randint(0, CLASSES, (rows, LENGTH), generator=generator) for _ in range(2))
    return ids, target


def compiled(microbatches: int, model: nn.Module | None = None, **options: Any) -> CompiledModel:
    torch.manual_seed(0)
    model = (model or Net()).train()
    given: dict[str, Any] = {
        "mesh": "1",
        "loss": loss_of,
        "optimizer": torch.optim.AdamW(model.parameters(), 0.01),
        "accumulate": microbatches,
        "strategy": None,
    }
    return autopar.compile(model, batch_of(4 * microbatches), **{**given, **options})


def repeats(program: Program) -> list[Op]:
    return [op for op in program.main.ops if op.kind == REPEAT]


@pytest.mark.parametrize("microbatches", [2, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": Net(0.0, counts=False)},
        {"fetch": ["output"]},
        {"clip_grad_norm": 1.0},
        {"model": Handing()},
        {"model": Spreading(), "loss": spread, "fetch": ["output"]},
        {"fetch": ["output"], "scaler": torch.amp.GradScaler("cpu", init_scale=256.0)},
    ],
)
def test_what_a_loop_takes_is_predicted(microbatches: int, options: dict[str, Any]) -> None:
    step = compiled(microbatches, **options)
    (program,) = step.deployment.programs
    assert len(repeats(program)) == 1
    coords = step.deployment.coords_of(0)
    seen = executed(program, {}, coords, step.deployment.groups)
    assert seen.peak_bytes == memory_timeline(program, coords).peak_bytes


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip_grad_norm": 0.1},
    "scaled": {"scaler": torch.amp.GradScaler("cpu", init_scale=1024.0), "clip_grad_norm": 0.1},
    "fetched": {"fetch": ["output"]},
}


def on_one_device(model: nn.Module, microbatches: int, steps: int, **options: Any) -> list[float]:
    """Returns the losses of the serial program, in which microbatches are one behind another."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    options = {**options, "fetch": tuple(options.get("fetch", ()))}
    recipe = Recipe(loss_of, optimizer=optimizer, accumulate=microbatches, **options)
    batch = batch_of(4 * microbatches)
    serial = Steps(capture(model, batch, recipe))
    return [float(serial.take(batch, seed=seed_of_step(0, at))) for at in range(steps)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [("1", None), ("2", "data:0"), ("3", "data:0"), ("2x2", "fsdp:0,tensor:1"), ("3", "auto")],
)
def test_a_loop_computes_what_one_device_does(
    mesh: str, strategy: str | None, case: str, tmp_path: Path
) -> None:
    options, batch = CASES[case], batch_of(12)
    step = compiled(3, mesh=mesh, strategy=strategy, **options)
    assert all(len(repeats(program)) == 1 for program in step.deployment.programs)
    step.save(tmp_path)
    with autopar.load(tmp_path, virtual=True) as trainer:
        losses = [float(trainer.step(batch)) for _ in range(3)]
    torch.manual_seed(0)
    expected = on_one_device(Net().train(), 3, 3, **options)
    assert losses == pytest.approx(expected, rel=1e-5)
    # Sums begin with zeros, to which products are added by the kernel: gradients are rounded so.
    assert mesh != "1" or losses[0] == expected[0]


@pytest.mark.parametrize("strategy", ["data:0,tensor:1", "auto"])
def test_a_rank_has_as_many_ops_whatever_there_are_of_microbatches(strategy: str) -> None:
    def ops(microbatches: int) -> int:
        model = Net(counts=False)
        step = compiled(microbatches, model, mesh="2x2", strategy=strategy)
        (program,) = step.deployment.programs
        return sum(len(function.ops) for function in program.functions.values())

    one, few, many = map(ops, (1, 4, 32))
    assert few == many <= 1.3 * one


@pytest.mark.slow
def test_torch_compile_sees_a_microbatch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step = compiled(4)
    # And what is around the loop.
    assert bodies_compiled(step, monkeypatch) == 2


def test_what_differs_between_slices_stays_calls() -> None:
    model = Carrying(parse_mesh("2x2"), (0, 1), staged=False)
    x = torch.ones(6, 4)
    step = autopar.compile(
        model,
        (x, x),
        mesh=model.mesh,
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=3,
        strategy=None,
    )
    assert not any(map(repeats, step.deployment.programs))
