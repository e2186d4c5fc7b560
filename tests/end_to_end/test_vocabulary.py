"""A vocabulary split over ranks: neither the table nor the logits are ever put together."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.judges import captured
from tests.judges.captured import Captured

VOCABULARY, SIZE = 50257, 16
FLOAT = 4
"""Bytes of an element."""


def model(weights: dict[str, Tensor], inputs: dict[str, Tensor], **options: object) -> Tensor:
    """Returns the loss of a language model with a table, one layer, and a head, perhaps tied."""
    x = F.embedding(inputs["tokens"], weights["table"])
    x = torch.tanh(x @ weights["layer"])
    logits = x @ weights.get("head", weights["table"]).t()
    flat = logits.view(-1, VOCABULARY)
    return F.cross_entropy(flat, inputs["labels"].view(-1), **options)  # type: ignore[arg-type]


def forward(weights: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"loss": model(weights, inputs)}


def training(weights: dict[str, Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    loss = model(leaves, inputs, label_smoothing=0.1)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"loss": loss, **{f"{n}.grad": g for n, g in zip(leaves, gradients, strict=True)}}


@functools.cache
def program(step: str, *, tied: bool, length: int = 32) -> Captured:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.1

    weights = {"table": normal(VOCABULARY, SIZE), "layer": normal(SIZE, SIZE)}
    if not tied:
        weights["head"] = normal(VOCABULARY, SIZE)
    ids = torch.randint(VOCABULARY, (2, 2, length), generator=generator)
    labels = ids[1].clone()
    labels[0, :3] = -100
    inputs = {"tokens": ids[0], "labels": labels}
    return captured.capture({"forward": forward, "training": training}[step], weights, inputs)


@pytest.mark.parametrize("tied", [True, False])
def test_forward_moves_statistics_of_tokens(tied: bool) -> None:
    """Bytes per token: an activation, a maximum and a sum; and once the loss."""
    source = program("forward", tied=tied)
    shards = ["table=[tp,-1]"] + ([] if tied else ["head=[tp,-1]"])
    done = captured.compiled(source, "tp=4", "none", *shards)
    captured.check(source, done)
    assert captured.kinds(done) == {"all_reduce": 4}
    total = sum(one.bytes for one in captured.collectives(done))
    assert total == FLOAT * (64 * (SIZE + 2) + 1)


@pytest.mark.parametrize("tied", [True, False])
def test_training_moves_statistics_of_tokens(tied: bool) -> None:
    """The gradient moves one more sum and one more activation per token."""
    source = program("training", tied=tied)
    shards = ["table=[tp,-1]"] + ([] if tied else ["head=[tp,-1]"])
    done = captured.compiled(source, "tp=4", "none", *shards)
    captured.check(source, done, 1e-4)
    assert captured.kinds(done) == {"all_reduce": 6}
    total = sum(one.bytes for one in captured.collectives(done))
    assert total == FLOAT * (64 * (2 * SIZE + 3) + 1)


@pytest.mark.parametrize("step", ["forward", "training"])
@pytest.mark.parametrize("tied", [True, False])
def test_presets_move_nothing_as_large_as_the_vocabulary(step: str, tied: bool) -> None:
    """But for the gradients of each rank's rows, which are added up over the batch.

    Each of them is a sum of its own, or together with small ones.
    """
    source = program(step, tied=tied)
    rows, little = FLOAT * -(-VOCABULARY // 4) * SIZE, FLOAT * 64 * SIZE
    gradients = (1 if tied else 2) if step == "training" else 0
    for mesh, strategy, sums in (
        ("tp=4", "tensor:0", 0),
        ("dp=2,tp=4", "data:dp,tensor:tp", gradients),
    ):
        done = captured.compiled(source, mesh, strategy)
        captured.check(source, done, 1e-4)
        large = [one for one in captured.collectives(done) if one.bytes > little]
        assert [one.kind for one in large] == ["all_reduce"] * sums
        assert all(rows <= one.bytes <= rows + little for one in large)


class Head(nn.Module):
    """A head and its loss, as a composite op when exported."""

    def __init__(self, weight: Tensor | None = None, **options: object) -> None:
        super().__init__()
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)
        self.register_buffer("weight", weight)
        self.options = options

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        options = {**self.options, "weight": self.weight}
        loss: Tensor = F.cross_entropy(self.head(x), labels, **options)
        return loss


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.2, "ignore_index": 5},
        {"reduction": "none"},
        {"reduction": "sum", "weight": torch.linspace(0.5, 1.5, VOCABULARY)},
    ],
    ids=["mean", "smoothing", "none", "weights"],
)
def test_the_composite_loss(options: dict[str, object]) -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(VOCABULARY, (128,), generator=generator)
    labels[:5] = 5
    source = captured.exported(
        Head(**options), x=torch.randn(128, SIZE, generator=generator), labels=labels
    )
    done = captured.compiled(source, "dp=2,tp=4", "none", "head.weight=[tp,-1]", "x=[dp,-1]")
    captured.check(source, done, 1e-4)
    assert max(one.bytes for one in captured.collectives(done)) <= FLOAT * 128


def test_probabilities_as_targets() -> None:
    generator = torch.Generator().manual_seed(1)
    source = captured.exported(
        Head(label_smoothing=0.1),
        x=torch.randn(16, SIZE, generator=generator),
        labels=torch.rand(16, VOCABULARY, generator=generator).softmax(1),
    )
    done = captured.compiled(source, "tp=4", "none", "head.weight=[tp,-1]", "labels=[-1,tp]")
    captured.check(source, done, 1e-4)
    assert max(one.bytes for one in captured.collectives(done)) <= FLOAT * 16
