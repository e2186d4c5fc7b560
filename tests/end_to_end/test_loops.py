"""Microbatches that are planned once, as a loop, train as a loop of one device does."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import annotate
from autopar.annotate import parse_mesh
from autopar.base.errors import VerificationError
from autopar.cost import Cluster
from autopar.frontend.torch import Captured, Recipe, capture
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops.loops import LEAVES
from autopar.ir.text import parse_program, print_program
from autopar.ir.unroll import has_loops, unrolled
from autopar.ir.verify import verify_structure
from autopar.pipeline import CompileOptions, compile_program
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.verification.verification import verify_mesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.given.random_pins import random_pins
from tests.judges.steps import Steps, stored_values

STEPS = 2
MESHES = ("1", "2", "3", "2x2", "3x2", "2x2x2")


class Mixed(nn.Module):
    """Convolution, normalization by batches, attention and a tied head, as chance has it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.norm = nn.BatchNorm1d(8) if chance.random() < 0.5 else nn.Identity()
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)
        self.head = nn.Linear(8, 11, bias=False)
        if chance.random() < 0.5:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        h = h + self.convolution(self.norm(h.transpose(1, 2))).transpose(1, 2)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        logits: Tensor = self.head(h + self.down(torch.relu(self.up(h))))
        return logits


def loss_of(kind: str, logits: Tensor, target: Tensor) -> Tensor:
    """Returns a loss of a kind."""
    rows, numbers = logits.flatten(0, 1), target.flatten()
    if kind == "squares":
        return (rows**2).mean() + F.cross_entropy(rows, numbers)
    if kind == "ignored":
        return F.cross_entropy(rows, numbers, ignore_index=3)
    return F.cross_entropy(rows, numbers, reduction=kind)


Batch = tuple[Tensor, Tensor]


def on_one_device(
    model: nn.Module, batch: Batch, kind: str, count: int, options: Mapping[str, Any]
) -> tuple[list[float], nn.Module]:
    """Returns the losses of steps in microbatches, and the model behind them."""
    model = copy.deepcopy(model)
    optimizer, losses = torch.optim.AdamW(model.parameters(), 0.01), []
    counted = int((batch[1] != 3).sum())
    # Of single rows it isn't told whether they are added up: they are weighted, and said to be.
    apart = len(batch[0]) > count
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for ids, target in zip(*(each.chunk(count) for each in batch), strict=True):
            weights = {
                "sum": 1.0 if apart else 1 / count,
                "ignored": int((target != 3).sum()) / counted,
            }
            value = loss_of(kind, model(ids), target) * weights.get(kind, 1 / count)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.item()
        if options.get("clip_grad_norm"):
            nn.utils.clip_grad_norm_(model.parameters(), options["clip_grad_norm"])
        optimizer.step()
        losses.append(total)
    return losses, model


def check(seed: int, folder: Path) -> None:
    """Checks the losses, parameters and buffers of a random step on a random mesh."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model, count = Mixed(chance).double(), chance.choice([2, 3, 4])
    rows, length = count * chance.choice([1, 2, 3]), chance.choice([4, 5])
    batch = torch.randint(0, 11, (rows, length)), torch.randint(0, 11, (rows, length))
    kind = chance.choice(["mean", "sum", "squares", "ignored"])
    options = {"clip_grad_norm": 0.5} if chance.random() < 0.5 else {}
    expected, trained = on_one_device(model, batch, kind, count, options)
    compiled = autopar.compile(
        model,
        batch,
        mesh=chance.choice(MESHES),
        loss=lambda logits, target: loss_of(kind, logits, target),
        optimizer=torch.optim.AdamW(model.parameters(), 0.01),
        accumulate=count,
        strategy=chance.choice(["auto", "data:0", "fsdp:0", "tensor:0", None]),
        **options,
    )
    assert has_loops(compiled.serial.main)
    compiled.save(folder / "build")
    with autopar.load(folder / "build", virtual=True) as trainer:
        losses = [float(trainer.step(batch)) for _ in range(STEPS)]
        found = trainer.state_dict()
    assert losses == pytest.approx(expected, rel=1e-9)
    for name, tensor in trained.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_a_random_step_is_that_of_one_device(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(3, 6), *range(100, 160)])
def test_many_random_steps_are_those_of_one_device(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def captured(model: nn.Module, rows: int, count: int) -> Captured:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recipe = Recipe(F.mse_loss, optimizer=optimizer, accumulate=count)
    return capture(model, (torch.ones(rows, 4), torch.ones(rows, 4)), recipe)


@pytest.mark.parametrize("seed", range(4))
def test_pins_within_a_loop(seed: int, tmp_path: Path) -> None:
    mesh = parse_mesh("3x2")
    layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    step = captured(layers, 10, 5)
    pins = random_pins(step.program, mesh, "loop", seed)
    done = compile_program(step.program, CompileOptions(mesh, Cluster.load("cpu"), "auto", pins))
    weights = stored_values(step)
    x = torch.randn(10, 4)
    write_weights(tmp_path / "weights", weights)
    with WeightFile(tmp_path / "weights") as file:
        ranks = VirtualMesh(done.deployment, file)
        found = verify_mesh(done.serial, weights, ranks, {"input": x, "target": x + 1}, forced=True)
    assert found.ok


def test_the_serial_program_is_as_large_whatever_there_are_of_microbatches() -> None:
    programs = [captured(nn.Linear(4, 4), 32, count).program for count in (2, 32)]
    assert len({len(program.main.ops) for program in programs}) == 1
    for program in programs:
        verify_structure(program)
        assert parse_program(print_program(program)) == program
        plain = unrolled(program)
        verify_structure(plain)
        assert not has_loops(plain.main)
        assert not any(op.kind in LEAVES for op in plain.main.ops)


def test_each_microbatch_draws_numbers_of_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4, bias=False), nn.Dropout(0.5))
    program = unrolled(captured(model, 12, 3).program)
    drawn = [op for op in program.main.ops if op.arg("number") is not None]
    assert len({(op.arg("number"), str(op.arg("seed"))) for op in drawn}) == len(drawn) == 6
    makers = program.main.producers()
    made = [makers[name] for op in drawn for name in op.operands if name in makers]
    seeds = {op.arg("other") for op in made if op.kind == "aten.add.Scalar"}
    assert len(seeds) == 2


def test_a_step_of_dropped_elements_is_the_same_on_every_mesh(tmp_path: Path) -> None:
    losses = []
    for mesh in ("1", "3", "2x2"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        step = autopar.compile(
            model,
            (torch.ones(12, 4), torch.ones(12, 4)),
            mesh=mesh,
            loss=F.mse_loss,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            accumulate=3,
        )
        step.save(tmp_path / mesh)
        with autopar.load(tmp_path / mesh, virtual=True) as trainer:
            batch = torch.ones(12, 4), torch.zeros(12, 4)
            losses.append([float(trainer.step(batch)) for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_what_a_microbatch_leaves_goes_on_to_the_next() -> None:
    model = nn.BatchNorm1d(4)
    steps, x = Steps(captured(model, 8, 4)), torch.randn(8, 4)
    steps.take((x, torch.zeros(8, 4)))
    for part in x.chunk(4):
        model(part)
    torch.testing.assert_close(steps.stored["running_mean"], model.running_mean)
    torch.testing.assert_close(steps.stored["running_var"], model.running_var)


class Carrying(nn.Module):
    """What is carried is read before the stage or slice in which it is made, or the other way."""

    def __init__(self, mesh: ProcessMesh, marks: Sequence[int], *, staged: bool) -> None:
        super().__init__()
        self.mesh, self.marks, self.staged = mesh, marks, staged
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        for name in ("means", "earlier", "rows", "late"):
            self.register_buffer(name, torch.ones(4))

    def sent(self, h: Tensor, mark: int) -> Tensor:
        if mark not in self.marks:
            return h
        return annotate.shard(h, self.mesh[self.mesh.dim_names[0], mark % 2], [-1, -1])

    def second(self) -> AbstractContextManager[None]:
        return annotate.pipeline_stage(1) if self.staged else nullcontext()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.norm(self.sent(self.first(x), 0)) + self.earlier / self.calls
        with self.second():
            h = torch.tanh(self.sent(h, 1)) + self.means * self.late
            self.late = h.detach().mean(0)
        h = self.sent(h, 2)
        self.earlier = self.means.clone()
        self.means = self.rows + h.detach().mean(0)
        self.rows = x.detach()[0]
        with self.second():
            return self.last(h)


def check_carried(model: Carrying, folder: Path, **options: Any) -> None:
    torch.manual_seed(0)
    model = model.double()
    x, target = torch.randn(6, 4).double(), torch.randn(6, 4).double()
    step = autopar.compile(
        model,
        (x, target),
        mesh=model.mesh,
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=3,
        strategy=None,
        **options,
    )
    assert has_loops(step.serial.main)
    expected = copy.deepcopy(model)
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    step.save(folder / "build")
    with autopar.load(folder / "build", virtual=True) as trainer:
        for _ in range(STEPS):
            trainer.step((x, target))
            optimizer.zero_grad()
            for rows, numbers in zip(x.chunk(3), target.chunk(3), strict=True):
                (F.mse_loss(expected(rows), numbers) / 3).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found = trainer.state_dict()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe-v"])
def test_stages_carry_what_they_make(schedule: str, staged: bool, tmp_path: Path) -> None:
    model = Carrying(parse_mesh("pp=2,dp=2"), (), staged=staged)
    check_carried(model, tmp_path, pipeline="pp", schedule=schedule)


@pytest.mark.parametrize("marks", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)])
def test_slices_carry_what_they_make(marks: Sequence[int], tmp_path: Path) -> None:
    check_carried(Carrying(parse_mesh("2x2"), marks, staged=False), tmp_path)


class Counting(nn.Module):
    """What it counts is read by the first stage alone, and written behind the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        self.calls += 1
        y: Tensor = self.second(h)
        return y


def test_a_batch_that_does_not_divide_finds_buffers_where_a_loop_has_them(tmp_path: Path) -> None:
    model = Counting()
    step = autopar.compile(
        model,
        (torch.ones(12, 4), torch.ones(12, 4)),
        mesh="pp=2,dp=2",
        loss=F.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=4,
        pipeline="pp",
        strategy=None,
        more_batches=[(torch.ones(10, 4), torch.ones(10, 4))],
    )
    step.save(tmp_path / "build")
    with autopar.load(tmp_path / "build", virtual=True) as trainer:
        for rows in (12, 10):
            trainer.step((torch.ones(rows, 4), torch.ones(rows, 4)))
        assert trainer.state_dict()["calls"] == 8


def test_a_loop_runs_equally_often_for_all_its_ops() -> None:
    program = captured(nn.Linear(4, 4), 8, 4).program
    ops = list(program.main.ops)
    at = next(number for number, op in enumerate(ops) if op.times > 1)
    ops[at] = replace(ops[at], loops=(("microbatch", 2),))
    with pytest.raises(VerificationError, match="microbatch=2"):
        verify_structure(program.with_main(replace(program.main, ops=tuple(ops))))
