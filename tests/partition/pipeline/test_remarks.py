"""What is said of pipelines that are other than one may think."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
