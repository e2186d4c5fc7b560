"""Predicted bytes beside those that a tracking mode sees, on models that nobody here wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from autopar.cost import AUTOGRAD, Cluster, MemoryTimeline, memory_timeline
from autopar.frontend.torch import Captured, Recipe, capture
from autopar.frontend.torch.capture.eager import record
from autopar.frontend.torch.capture.recorder import Recording
from autopar.ir.unroll import unrolled
from autopar.partition.recompute import Recomputer
from tests.cost.models import MORE
from tests.judges.tracking import Tracking, executed
from tests.zoo import models as zoo
from tests.zoo.models import Example

MODELS = ("gpt2", "llama", "bert", "vit", "t5", "resnet", "mixtral", "qwen2", *MORE)
QUICK = ("llama", "resnet", "lstm", "recommender")


def example_of(name: str) -> Example:
    return MORE[name]() if name in MORE else zoo.ZOO[name]()


def marked(names: tuple[str, ...]) -> list[Any]:
    return [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in names]


def trained(example: Example, **options: Any) -> Captured:
    optimizer = torch.optim.AdamW(example.model.parameters(), 1e-3)
    return capture(example.model, example.batch(0), Recipe(example.loss, optimizer=optimizer))


@pytest.mark.parametrize("name", marked(MODELS))
def test_a_compiled_step(name: str) -> None:
    captured = trained(example_of(name))
    predicted = memory_timeline(captured.program)
    assert executed(captured.program, captured.weights).peak_bytes == predicted.peak_bytes


@pytest.mark.parametrize("name", marked(MODELS))
def test_a_compiled_step_that_computes_activations_again(name: str) -> None:
    captured = trained(example_of(name))
    before = memory_timeline(captured.program)
    recomputer = Recomputer(captured.program, Cluster.load("h100"))
    limit = max(before.peak_bytes - before.saved_bytes // 20, recomputer.least_bytes)
    found = recomputer.within(limit)
    predicted = memory_timeline(found.program)
    assert predicted.peak_bytes <= limit
    assert executed(found.program, captured.weights).peak_bytes == predicted.peak_bytes


class Dropping(nn.Module):
    """Attention and a perceptron, with dropout in both: tiny, so that the masks are the largest."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(12, 12, dtype=dtype) for _ in range(3))
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], 4, 3).transpose(1, 2) for layer in self.inner)
        weights = self.drop((q @ k.transpose(-1, -2)).softmax(-1))
        x = x + (weights @ v).transpose(1, 2).reshape(x.shape)
        return self.drop(F.gelu(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rows", [4, 300])
def test_a_step_with_dropout(dtype: torch.dtype, rows: int) -> None:
    """What random kernels take is most of the peak; beyond a size they draw in pieces."""
    x = torch.zeros(rows, 8, 12, dtype=dtype)
    example = Example(Dropping(dtype), lambda _: (x, x), F.mse_loss)
    captured = trained(example)
    predicted = memory_timeline(captured.program)
    assert executed(captured.program, captured.weights).peak_bytes == predicted.peak_bytes
    recomputer = Recomputer(captured.program, Cluster.load("cpu"))
    again = recomputer.within(recomputer.least_bytes)
    predicted = memory_timeline(again.program)
    assert executed(again.program, captured.weights).peak_bytes == predicted.peak_bytes


def stepped(example: Example) -> Tracking:
    """Runs a forward and backward pass of a module under autograd."""
    model, batch = example.model, example.batch(0)
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    with Tracking([*model.parameters(), *model.buffers(), *leaves]) as seen:
        if example.loss is None:
            out = model(**batch)
            out.loss.backward()
        else:
            inputs, target = batch
            out = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
            example.loss(out, target).backward()
    return seen


def predicted(found: Recording) -> MemoryTimeline:
    execution = replace(AUTOGRAD, until=found.until, kept_until=found.held)
    return memory_timeline(found.program, execution=execution)


@pytest.mark.parametrize("name", marked(MODELS))
def test_a_module_under_autograd(name: str) -> None:
    example = example_of(name)
    timeline = predicted(record(example.model, example.batch(0), loss=example.loss))
    measured = stepped(example).peak_bytes
    # Within a step of autograd that has several ops, what it frees meanwhile isn't known.
    assert timeline.peak_bytes == pytest.approx(measured, rel=0.01 if name in MORE else 0)
    assert timeline.peak_bytes >= measured


@pytest.mark.parametrize("name", marked(MODELS))
def test_what_autograd_saves(name: str) -> None:
    """Exactly the storages that autograd packs, besides those that are there anyway."""
    example = example_of(name)
    model, batch = example.model, example.batch(0)
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    stored = {
        tensor.untyped_storage()._cdata
        for tensor in (*model.parameters(), *model.buffers(), *leaves)
    }
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage()._cdata
        if key not in stored:
            saved[key] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if example.loss is None:
            model(**batch)
        else:
            inputs, target = batch
            out = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
            example.loss(out, target)
    nbytes = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    timeline = predicted(record(example.model, batch, loss=example.loss))
    assert timeline.saved_bytes == nbytes


def test_more_microbatches_take_no_more_memory() -> None:
    """Gradients are added up as they are made: those of all microbatches never lie there together.

    But for one that is being added, beside the sum and what it becomes.
    """
    peaks = []
    for count in (2, 4, 8):
        example = Example(nn.Linear(64, 64), lambda _: (torch.zeros(8, 64),) * 2, F.mse_loss)
        optimizer = torch.optim.AdamW(example.model.parameters())
        recipe = Recipe(example.loss, optimizer=optimizer, accumulate=count)
        captured = capture(example.model, example.batch(0), recipe)
        program = unrolled(captured.program)
        predicted = memory_timeline(program)
        assert executed(program, captured.weights).peak_bytes == predicted.peak_bytes
        peaks.append(predicted.peak_bytes)
    assert sorted(peaks, reverse=True) == peaks
