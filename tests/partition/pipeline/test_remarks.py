"""What is said of pipelines that are other than one may think: idle presets, stages going back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar import annotate
from tests.partition.pipeline.models import (
    Decoder,
    batch_of,
    compiled,
    on_one_device,
    on_virtual_mesh,
)

IDLE = (
    "divides nothing, as each stage is at one index of pp; say at how many with stages=, or leave"
    " the preset out"
)


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ({"mesh": "pp=2", "strategy": "data:pp"}, "data:pp"),
        ({"mesh": "pp=2,dp=3", "strategy": "data:dp,tensor:0"}, "tensor:pp"),
        ({"mesh": "pp=2,dp=3", "strategy": "data"}, ""),
        ({"mesh": "pp=2", "strategy": "replicate:pp"}, ""),
        ({"mesh": "pp=3", "strategy": "data:pp", "stages": (1, 2)}, ""),
        ({"mesh": "pp=2", "strategy": "data:pp", "stages": (2,)}, ""),
    ],
    ids=str,
)
def test_a_preset_along_stages_at_one_index_each_is_idle(
    options: dict[str, object], idle: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Decoder(len(options.get("stages", (1, 1))), layers=2)  # type: ignore[arg-type]
    step = compiled(model, 3, **options)
    lines = [line for line in step.summary().splitlines() if IDLE in line]
    assert lines == [f"{idle}: {IDLE}" for _ in range(1 if idle else 0)]
    step.save(tmp_path / "build")
    losses = on_virtual_mesh(tmp_path / "build", batch_of(6))
    assert losses == pytest.approx(on_one_device(model, 3), rel=1e-5)


class Back(nn.Module):
    """Layers each in a stage of its own, and a line more in the stage of the last one."""

    def __init__(self, stages: list[int | None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stages = stages
        self.tokens, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in stages)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for stage, layer in zip(self.stages, self.layers, strict=True):
            if stage is None:
                x = layer(x).tanh()
                continue
            with annotate.pipeline_stage(stage):
                y = layer(x)
                x = y.tanh()
        return self.head(x)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([0, 1], []),
        ([0, 1, None], []),
        ([0, 1, 0], [(0, 1)]),
        ([0, 2, 1, 1], [(1, 2)]),
        ([2, 0, 1, 2], [(0, 2), (1, 2)]),
    ],
    ids=str,
)
def test_marks_of_stages_that_go_back_are_told(
    stages: list[int | None], said: list[tuple[int, int]], tmp_path: Path
) -> None:
    model = Back(stages)
    count = 1 + max(stage or 0 for stage in stages)
    step = compiled(model, 2, mesh=f"pp={count}", strategy=None)
    told = [each for each in step.report if each.subject.startswith("pipeline_stage")]
    assert [(each.subject, each.detail) for each in told] == [
        (f"pipeline_stage({mark})", f"this reads what is made in stage {later}, and so runs there")
        for mark, later in said
    ]
    line = Path(__file__).read_text().splitlines().index("                y = layer(x)") + 1
    assert {(each.loc.file, each.loc.line) for each in told} <= {(__file__, line)}
    step.save(tmp_path / "build")
    losses = on_virtual_mesh(tmp_path / "build", batch_of(4))
    assert losses == pytest.approx(on_one_device(model, 2), rel=1e-5)


def test_the_summary_says_where_a_stage_goes_back() -> None:
    step = compiled(Back([1, 0]), 2, mesh="pp=2", strategy=None)
    [line] = [each for each in step.summary().splitlines() if "runs there" in each]
    assert "pipeline_stage(0): this reads what is made in stage 1" in line
    assert "test_remarks.py:" in line


def test_a_parallel_module_warns_of_a_stage_that_goes_back() -> None:
    model, (ids, _) = Back([1, 0]), batch_of(6)
    with pytest.warns(UserWarning, match=r"pipeline_stage\(0\): .* stage 1, .* \(.*test_remarks"):
        parallel = autopar.parallelize(model, ids, mesh="pp=1", pipeline="pp", microbatches=3)
    torch.testing.assert_close(parallel(ids), Back([1, 0])(ids))
