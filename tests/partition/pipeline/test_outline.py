"""Tasks of a pipeline as functions: what they are, what they take, and what they compute."""

from __future__ import annotations

import pytest
import torch

from autopar.cost import memory_timeline
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.execute.updates import InPlace
from tests.cost.memory.test_measured_memory import arguments
from tests.judges.tracking import Tracking
from tests.partition.pipeline.models import (
    Decoder,
    compiled,
)

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
