"""What is predicted of a pipeline: seconds of all ranks together, their waiting, their memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
from autopar.pipeline.stages import bubble
from autopar.planning.price import price
from tests.partition.pipeline.models import FREE_LINKS

COUNTED = replace(FREE_LINKS, memory_bytes_per_second=1e24, launch_seconds=0.0)
"""Where nothing takes time but products, so that all stages take as long."""

WIDTH, ROWS = 512, 512


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
    model = Chain(stages)
    rows = torch.zeros(ROWS * microbatches, WIDTH)
    return autopar.compile(
        model,
        (rows, rows),
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        accumulate=microbatches,
        **{"pipeline": "pp", "strategy": None, "cluster": COUNTED, **options},  # type: ignore[arg-type]
    )


BUBBLES = {"gpipe": 2, "1f1b": 2, "zb-h1": 1}
"""How many tasks each process waits for, per process behind the first.

That is a forward and a backward pass (Narayanan et al., 2021), of which nobody waits for the half
that is gradients of weights; or a backward pass without those (Qi et al., 2023).
"""


@pytest.mark.parametrize("schedule", sorted(BUBBLES))
@pytest.mark.parametrize(("processes", "microbatches"), [(2, 3), (4, 8), (8, 8)])
def test_bubbles_are_those_that_are_published(
    schedule: str, processes: int, microbatches: int
) -> None:
    step = compiled(processes, microbatches, mesh=f"pp={processes}", schedule=schedule)
    found = evaluate_together(programs_of(step.partitioned).kinds, COUNTED)
    waited = BUBBLES[schedule] * (processes - 1)
    share = waited / (3 * microbatches + waited)
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
