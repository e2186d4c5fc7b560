"""`schedule="auto"`: the fastest order within a limit of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.partition.pipeline.schedules import SCHEDULES
from autopar.partition.recompute import DoesNotFit
from autopar.planning.price import price
from tests.partition.pipeline.models import (
    FREE_LINKS,
    Decoder,
    batch_of,
    compiled,
    on_one_device,
    on_virtual_mesh,
)


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(1, layers=8)


def seconds_of(schedule: str, memory: str | None = None) -> float:
    """Returns what a step is predicted to take; infinity if it doesn't fit."""
    options = {"mesh": "pp=2", "strategy": None, "cluster": FREE_LINKS, "memory": memory}
    try:
        step = compiled(decoder(), 4, schedule=schedule, **options)
    except DoesNotFit:
        return float("inf")
    return price(step.partitioned, FREE_LINKS).overlapped_seconds


@pytest.mark.slow
def test_no_schedule_is_faster_within_a_limit_and_more_memory_is_never_slower() -> None:
    found = []
    for memory in ("11KiB", "14KiB", None):
        found.append(seconds_of("auto", memory))
        # The automatic cut is that of one of the schedules that share a plan.
        others = min(seconds_of(each, memory) for each in SCHEDULES)
        assert found[-1] <= others * 1.01
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_the_user_sees_what_was_compared_and_the_build_remembers_the_choice(
    tmp_path: Path,
) -> None:
    model = decoder()
    step = compiled(model, 4, mesh="pp=2", strategy=None, schedule="auto", cluster=FREE_LINKS)
    assert step.options.schedule in SCHEDULES
    (said,) = (entry.detail for entry in step.report if entry.subject == "schedule")
    assert said.startswith(f"{step.options.schedule} is the fastest; ")
    assert all(name in said for name in SCHEDULES)
    step.save(tmp_path / "build")
    found = on_virtual_mesh(tmp_path / "build", batch_of(8))
    assert found == pytest.approx(on_one_device(model, 4), rel=1e-5)


def test_where_nothing_fits_the_least_need_is_named() -> None:
    with pytest.raises(DoesNotFit, match="a device would hold"):
        compiled(decoder(), 4, mesh="pp=2", strategy=None, schedule="auto", memory="2KiB")
