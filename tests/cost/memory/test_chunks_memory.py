"""What a head with cross-entropy takes in chunks, as predicted and as a tracking mode sees it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autopar.annotate import ChunkPin, parse_mesh
from autopar.cost import Cluster, memory_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.pipeline import CompileOptions, compile_program
from tests.judges.tracking import executed

ROWS, WIDTH, CLASSES = 256, 16, 1000


class Head(nn.Module):
    """What is projected is a parameter, so that it has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.randn(ROWS, WIDTH))
        self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, target: Tensor) -> Tensor:
        return F.cross_entropy(self.hidden @ self.weight.t(), target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [4, 8, 7])
def test_a_head_in_chunks(parts: int, dtype: torch.dtype) -> None:
    """Both gradients, and scores of two chunks, beside what is small.

    The gradient of a weight of 16 bits is there in 32 bits, too, in which it is added up.
    """
    model = Head().to(dtype)
    recipe = Recipe(
        training_step=lambda module, target: module(target),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )
    captured = capture(model, torch.zeros(ROWS, dtype=torch.int64), recipe)
    pins = (ChunkPin.from_entry("mm", (0, parts)),)
    options = CompileOptions(parse_mesh("1"), Cluster.load("cpu"), None, chunks=pins)
    (program,) = compile_program(captured.program, options).deployment.programs
    timeline = memory_timeline(program)
    assert executed(program, captured.weights).peak_bytes == timeline.peak_bytes
    gradients = (ROWS + CLASSES) * WIDTH * dtype.itemsize
    gradients += 0 if dtype == torch.float32 else CLASSES * WIDTH * 4
    scores = 2 * -(-ROWS // parts) * CLASSES * dtype.itemsize
    assert timeline.peak_bytes - timeline.stored_bytes <= 1.02 * (gradients + scores)
