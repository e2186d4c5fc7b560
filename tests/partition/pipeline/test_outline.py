"""Tasks of a pipeline as functions: what they are, what they take, and what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import annotate
from autopar.cost import memory_timeline
from autopar.ir.text import parse_program
from autopar.partition.pipeline import Outline
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.updates import InPlace
from tests.judges.compiled_bodies import bodies_compiled
from tests.judges.tracking import Tracking, arguments
from tests.partition.pipeline.models import Decoder, compiled, on_virtual_mesh

SCHEDULES = ("1f1b", "gpipe", "zb-h1")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("microbatches", [2, 5])
def test_what_tasks_take_is_predicted(schedule: str, microbatches: int) -> None:
    """A pipeline of one process, so that nothing has to be received."""
    model = Decoder(2, tied=True, skips=True)
    step = compiled(model, microbatches, mesh="pp=1", schedule=schedule)
    (program,) = step.deployment.programs
    assert len(program.functions) > 4
    concrete = specialize(program, {"pp": 0})
    groups = {name: Group("", 1, 0, (0,), "gloo") for name in step.deployment.groups}
    module = emit(concrete, groups, "cpu", InPlace(lambda loss, refusal: None))
    inputs = arguments(concrete, {})
    with Tracking(inputs) as seen, torch.no_grad():
        results = module.forward(*inputs)
    del results
    assert seen.peak_bytes == memory_timeline(program, {"pp": 0}).peak_bytes


class Dropping(nn.Module):
    """Layers with dropout between them, in two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            with annotate.pipeline_stage(at // 2):
                x = F.dropout(torch.tanh(layer(x)), 0.3)
        return x


@pytest.mark.parametrize("mesh", ["pp=2", "pp=2,dp=2"])
def test_tasks_draw_as_one_device_does(mesh: str, tmp_path: Path) -> None:
    model, batch = Dropping(), (torch.randn(8, 8), torch.randn(8, 8))

    def losses(name: str, **options: Any) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        given = {"loss": F.mse_loss, "optimizer": optimizer, "accumulate": 4, "pipeline": "pp"}
        step = autopar.compile(model, batch, **given, **options)
        step.save(tmp_path / name)
        assert all(len(each.functions) > 1 for each in step.deployment.programs)
        return on_virtual_mesh(tmp_path / name, batch)

    wanted = losses("one", mesh="pp=1", memory=None)
    assert losses("tasks", mesh=mesh) == pytest.approx(wanted, rel=1e-6)
    limited = losses("limited", mesh=mesh, memory=2**30)
    assert limited == pytest.approx(wanted, rel=1e-6)


IDLE = """
  input     %x: f32[4, 6] as "x"
  %part: f32[2, 6] = autopar.loop_take(self=%x, trip=2)
  %left: f32[2, 6] = aten.tanh.default(self=%part) loops(microbatch=2)
  return %x as "x"
"""


def test_what_nobody_reads_is_no_function() -> None:
    main = Outline()(parse_program(IDLE)).main
    assert [op.kind for op in main.ops] == ["autopar.loop_take"]


@pytest.mark.slow
def test_torch_compile_sees_each_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step = compiled(Decoder(2, tied=True, skips=True), 4, mesh="pp=1")
    (program,) = step.deployment.programs
    assert bodies_compiled(step, monkeypatch) == len(program.functions) - 1
