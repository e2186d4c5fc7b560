"""What is computed again of microbatches is in their functions: once, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import annotate
from autopar.compiled import CompiledModel
from autopar.cost import evaluate, memory_timeline, peak_rank_timeline
from autopar.ir.program import Program
from autopar.partition.pipeline.schedules import SCHEDULES
from autopar.partition.recompute import DoesNotFit
from tests.judges.tracking import executed

ROWS, WIDTH, LAYERS = 96, 12, 4


class Deep(nn.Module):
    """Layers that keep much, draw random numbers, and count what they saw."""

    def __init__(self, stages: int, dropout: float = 0.3) -> None:
        super().__init__()
        self.stages, self.dropout = stages, dropout
        self.up = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(LAYERS))
        self.norm = nn.BatchNorm1d(WIDTH) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for at, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            with annotate.pipeline_stage(at * self.stages // len(self.up)):
                x = x + F.dropout(down(F.gelu(torch.tanh(up(x)) * 2)), self.dropout)
                if not at and self.dropout:
                    x = self.norm(x)
        return x


@cache
def compiled(
    mesh: str,
    microbatches: int,
    schedule: str = "",
    memory: int | None = None,
    dropout: float = 0.3,
    **options: Any,
) -> CompiledModel:
    """Returns a step of a pipeline if there is a schedule, else one that accumulates gradients.

    Within a limit it computes again, and nothing in chunks, which add up in another order.
    """
    torch.manual_seed(0)
    options.setdefault("chunks", {})
    if schedule:
        options |= {"pipeline": "pp", "schedule": schedule}
    processes = int(mesh.removeprefix("pp=").split(",")[0]) if schedule else 1
    turns = SCHEDULES[schedule].turns if schedule else 1
    model = Deep(processes * turns, dropout).train()
    return autopar.compile(
        model,
        batch(microbatches),
        mesh=mesh,
        strategy=None if schedule else "data:0",
        loss=F.mse_loss,
        optimizer=torch.optim.AdamW(model.parameters(), 0.01),
        clip_grad_norm=1.0,
        accumulate=microbatches,
        memory=memory,
        **options,
    )


def batch(microbatches: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(3)
    shape = ROWS * microbatches, WIDTH
    return torch.randn(shape, generator=drawn), torch.randn(shape, generator=drawn)


def peak(step: CompiledModel) -> int:
    return peak_rank_timeline(step.partitioned).peak_bytes


def limits(
    mesh: str, microbatches: int, schedule: str = "", count: int = 5, **options: Any
) -> list[int]:
    """Returns limits from the least that a step can do with to what it holds without one."""
    with pytest.raises(DoesNotFit) as miss:
        compiled(mesh, microbatches, schedule, 1, **options)
    low = miss.value.least_bytes
    high = peak(compiled(mesh, microbatches, schedule, **options))
    assert low < high
    return [low + (high - low) * at // (count - 1) for at in range(count)]


def copies(program: Program) -> int:
    ops = [op for function in program.functions.values() for op in function.ops]
    return sum("recompute" in dict(op.plan) for op in ops)


def trained(step: CompiledModel, folder: Path, microbatches: int) -> Mapping[str, Tensor]:
    """Returns the losses of steps, and the state behind them."""
    step.save(folder)
    with autopar.load(folder, virtual=True) as trainer:
        losses = [trainer.step(batch(microbatches)) for _ in range(2)]
        return {"losses": torch.stack(losses), **trainer.state_dict()}


OF_TWO_STAGES = ("interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe-v")

PLACES = [
    ("1", 8, ""),
    ("2x2", 2, ""),
    ("pp=2,dp=2", 4, "1f1b"),
    *(
        pytest.param(mesh, microbatches, schedule, marks=pytest.mark.slow)
        for mesh, microbatches, schedule in (
            ("3", 4, ""),
            ("pp=1", 3, "1f1b"),
            *(("pp=2", 5, schedule) for schedule in OF_TWO_STAGES),
            ("pp=3", 4, "zb-h2"),
        )
    ),
]


@pytest.mark.parametrize(("mesh", "microbatches", "schedule"), PLACES)
def test_training_is_the_same_to_the_bit(
    mesh: str, microbatches: int, schedule: str, tmp_path: Path
) -> None:
    wanted = trained(compiled(mesh, microbatches, schedule), tmp_path / "free", microbatches)
    for memory in limits(mesh, microbatches, schedule)[:3:2]:
        step = compiled(mesh, microbatches, schedule, memory)
        assert peak(step) <= memory
        assert copies(step.partitioned)
        found = trained(step, tmp_path / str(memory), microbatches)
        assert wanted.keys() == found.keys()
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(("mesh", "microbatches", "schedule"), PLACES)
def test_more_memory_is_never_slower_nor_less_memory_larger(
    mesh: str, microbatches: int, schedule: str
) -> None:
    steps = []
    for memory in limits(mesh, microbatches, schedule):
        step = compiled(mesh, microbatches, schedule, memory)
        assert peak(step) <= memory
        steps.append((evaluate(step.partitioned, step.options.cluster), peak(step)))
    for (less, held), (more, holds) in pairwise(steps):
        assert more.serialized_seconds <= less.serialized_seconds * (1 + 1e-9)
        assert holds >= held
    assert steps[-1][1] == peak(compiled(mesh, microbatches, schedule))


@pytest.mark.parametrize(
    "schedule",
    ["1f1b", *(pytest.param(name, marks=pytest.mark.slow) for name in ("", "gpipe", "zb-h1"))],
)
def test_what_is_held_is_what_is_predicted(schedule: str) -> None:
    """On one process, so that nothing has to be received."""
    mesh = "pp=1" if schedule else "1"
    for memory in limits(mesh, 4, schedule, 4, dropout=0.0):
        step = compiled(mesh, 4, schedule, memory, dropout=0.0)
        (program,) = step.deployment.programs
        coords = dict.fromkeys(step.mesh.dim_names, 0)
        seen = executed(program, {}, coords, step.deployment.groups)
        assert seen.peak_bytes == memory_timeline(program, coords).peak_bytes <= memory


def test_programs_do_not_grow_with_microbatches() -> None:
    sizes = []
    for microbatches in (2, 8):
        memory = limits("1", microbatches)[2]
        functions = compiled("1", microbatches, memory=memory).partitioned.functions
        assert set(functions) == {"main", "microbatch"}
        sizes.append(len(functions["microbatch"].ops))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_the_report_says_what_is_computed_again() -> None:
    step = compiled("1", 8, memory=limits("1", 8)[2])
    (entry,) = (each for each in step.report if each.category == "recompute")
    assert entry.subject == f"{copies(step.partitioned)} ops"
