"""What is predicted of a pipeline: seconds of all ranks together, their waiting, their memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import autopar
from autopar import annotate
from autopar.analysis.profiling import profile_compiled
from autopar.cli.commands import main
from autopar.cost import evaluate_together
from autopar.ir.parts import programs_of
from autopar.partition.pipeline.schedules import SCHEDULES
from autopar.pipeline.stages import bubble
from autopar.planning.price import price
from tests.partition.pipeline.models import FREE_LINKS, Batch, on_virtual_mesh

COUNTED = replace(FREE_LINKS, memory_bytes_per_second=1e24, launch_seconds=0.0)
"""Where nothing takes time but products, so that all stages take as long."""

WIDTH, ROWS = 1024, 512


class Chain(nn.Module):
    """Layers that are alike, of which each is a stage; the first one has a gradient to compute."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(stages))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(at):
                x = torch.tanh(layer(x))
        return x


def compiled(stages: int, microbatches: int, **options: object) -> autopar.CompiledModel:
    rows = torch.zeros(ROWS * microbatches, WIDTH)
    return compiled_step(Chain(stages), (rows, rows), microbatches, **options)


def compiled_step(
    model: nn.Module, batch: Batch, microbatches: int, **options: object
) -> autopar.CompiledModel:
    return autopar.compile(
        model,
        batch,
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=microbatches,
        **{"pipeline": "pp", "strategy": None, "cluster": COUNTED, **options},  # type: ignore[arg-type]
    )


BUBBLES = {"gpipe": 2, "1f1b": 2, "zb-h1": 1, "zb-v": 1, "dualpipe-v": 1}
"""How many tasks each process waits for, per process behind the first.

That is a forward and a backward pass (Narayanan et al., 2021), of which nobody waits for the half
that is gradients of weights; or a backward pass without those (Qi et al., 2023). In a V it is the
forward pass of a stage, of which a process has two.
"""


@pytest.mark.parametrize("schedule", sorted(BUBBLES))
@pytest.mark.parametrize(
    ("processes", "microbatches"),
    [
        (2, 3),
        (4, 8),
        (8, 8),
        pytest.param(16, 32, marks=pytest.mark.slow),
        pytest.param(32, 32, marks=pytest.mark.slow),
        pytest.param(64, 64, marks=pytest.mark.slow),
    ],
)
def test_bubbles_are_those_that_are_published(
    schedule: str, processes: int, microbatches: int
) -> None:
    turns = SCHEDULES[schedule].turns
    if SCHEDULES[schedule].in_v:
        # Processes wait longer if the first microbatch is back after all have begun.
        microbatches = max(microbatches, 2 * processes - 1)
    step = compiled(turns * processes, microbatches, mesh=f"pp={processes}", schedule=schedule)
    found = evaluate_together(programs_of(step.partitioned).kinds, COUNTED)
    waited = BUBBLES[schedule] * (processes - 1)
    share = waited / (3 * turns * microbatches + waited)
    assert bubble(found) == pytest.approx(share, rel=0.01)
    alone = found[0].compute_seconds
    assert price(step.partitioned, COUNTED).overlapped_seconds == pytest.approx(
        alone / (1 - share), rel=0.01
    )


def test_links_that_are_slower_make_a_step_longer_by_what_they_take() -> None:
    step = compiled(2, 1, mesh="pp=2", schedule="gpipe")
    alpha = 1.0
    slow = replace(
        COUNTED, links=tuple(replace(each, alpha_seconds=alpha) for each in COUNTED.links)
    )
    free, delayed = (price(step.partitioned, each).overlapped_seconds for each in (COUNTED, slow))
    # An activation there, and a gradient back.
    assert delayed - free == pytest.approx(2 * alpha)


def test_the_memory_of_a_pipeline_is_that_of_its_fullest_stage() -> None:
    step = compiled(4, 8, mesh="pp=4", schedule="1f1b")
    profiles = profile_compiled(step.serial, step.deployment, COUNTED)
    assert price(step.partitioned, COUNTED).peak_bytes == max(each.peak_bytes for each in profiles)
    inner = [each.peak_bytes for each in profiles[:-1]]
    assert inner == sorted(inner, reverse=True)


def test_a_user_sees_seconds_bubble_and_schedule(tmp_path: Path) -> None:
    step = compiled(4, 4, mesh="pp=4", schedule="gpipe")
    lines = [line for line in step.summary().splitlines() if "pp=" in line or "gpipe" in line]
    assert "gpipe:" in lines[1]
    assert "of which processes wait 33." in lines[1]
    assert [line.split(":")[0].strip() for line in lines[2:6]] == [f"pp={at}" for at in range(4)]
    step.save(tmp_path / "build")
    shown = CliRunner().invoke(main, ["profile", str(tmp_path / "build")])
    assert shown.exit_code == 0, shown.output
    rows = shown.output.strip().splitlines()[-5:-1]
    assert rows[0].startswith("000")
    assert rows[0].endswith("ddd")
    assert rows[3].startswith("...")
    assert "333aaa" in rows[3]


def summary_of(classifier: nn.Module, **options: Any) -> list[str]:
    """Returns what is said of each process, of a loss that counts the targets first."""
    step = autopar.compile(
        classifier,
        (torch.ones(8, 16), torch.arange(8)),
        loss=nn.functional.cross_entropy,
        optimizer=torch.optim.SGD(classifier.parameters(), 0.1),
        pipeline="pp",
        strategy=None,
        **options,
    )
    return [line for line in step.summary().splitlines() if "holds at most" in line]


@pytest.mark.parametrize("accumulate", [1, 3, 4])
def test_a_stage_begins_with_what_it_does_with_what_is_sent(accumulate: int) -> None:
    first, last = summary_of(Deep(), mesh="pp=2", accumulate=accumulate)
    assert first.endswith("stage 0 from layers.0.addmm on")
    assert last.endswith("stage 1 from layers.6.addmm_6 on")


def test_processes_without_a_stage_are_said_to_have_none() -> None:
    *_, idle = summary_of(Deep(), mesh="pp=3", accumulate=2)
    assert idle.strip().startswith("pp=2: waits")
    assert idle.endswith("; no stage is here: mark more of them, or make pp smaller")


class Deep(nn.Module):
    """Layers that keep several activations each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(at // 6):
                x = x + torch.tanh(torch.sigmoid(layer(x)) * 2)
        return x


@pytest.mark.parametrize("mesh", ["pp=2", "pp=2,dp=2"])
def test_a_limit_of_memory_is_one_of_each_stage(mesh: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batch = Deep(), (torch.randn(384, 16), torch.randn(384, 16))

    def trained(**options: object) -> tuple[list[int], list[float]]:
        step = compiled_step(model, batch, 6, mesh=mesh, **options)
        step.save(tmp_path / f"build{len(options)}")
        peaks = [
            each.peak_bytes for each in profile_compiled(step.serial, step.deployment, FREE_LINKS)
        ]
        return peaks, on_virtual_mesh(tmp_path / f"build{len(options)}", batch)

    free, wanted = trained()
    assert free[0] > free[1]
    limit = (free[0] + free[1]) // 2
    held, losses = trained(memory=limit, chunks={})
    assert held[0] <= limit
    # The last stage has room enough, and does as before.
    assert held[1] == free[1]
    assert losses == wanted
