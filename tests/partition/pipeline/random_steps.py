"""Random training steps as pipelines: models, cuts, schedules, microbatches, meshes, optimizers."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import annotate
from autopar.partition.pipeline.schedules import SCHEDULES

WIDTH, LENGTH, WORDS = 8, 5, 11
STEPS = 2

MESHES = ("pp=2", "pp=3", "pp=4", "pp=2,dp=2", "dp=2,pp=2", "pp=2,tp=2", "dp=3,pp=2", "pp=3,tp=2")
LAYERS = ("linear", "attention", "convolution", "norm", "gated", "experts", "recurrent")
STATEFUL = ("statistics", "counted", "averaged")
"""Layers with buffers, which each microbatch reads as the one before has left them."""


class Layer(nn.Module):
    """One layer of [rows, length, width], of some kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)
        self.back = nn.Linear(2 * WIDTH, WIDTH)
        if kind == "attention":
            self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        if kind == "convolution":
            self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        if kind == "statistics":
            self.statistics = nn.BatchNorm1d(WIDTH)
        self.count: Tensor
        self.average: Tensor
        if kind == "counted":
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        if kind == "averaged":
            self.register_buffer("average", torch.zeros(WIDTH))
        if kind == "recurrent":
            self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor, aside: Tensor) -> Tensor:
        """Returns what the layer makes of a tensor, and of an earlier one of the same shape."""
        if self.kind == "attention":
            found: Tensor = self.attention(x, aside, aside, need_weights=False)[0]
            return found
        if self.kind == "convolution":
            convolved: Tensor = self.convolution(x.transpose(1, 2))
            return convolved.transpose(1, 2)
        if self.kind == "norm":
            normed: Tensor = self.norm(x + aside)
            return normed
        if self.kind == "statistics":
            centred: Tensor = self.statistics(x.transpose(1, 2))
            return centred.transpose(1, 2) + aside
        if self.kind == "counted":
            self.count += 1
            x = x / (1 + 0.1 * self.count)
        if self.kind == "averaged":
            # What is kept is read before it is written, and again by the next microbatch.
            before = self.average
            self.average = 0.9 * before + 0.1 * (x + aside).mean((0, 1)).detach()
            x = x - before
        if self.kind == "recurrent":
            states: Tensor = self.recurrent(x)[0]
            return states
        inner: Tensor = self.linear(x)
        if self.kind == "gated":
            one, other = inner.chunk(2, -1)
            return one * torch.sigmoid(other) + aside
        if self.kind == "experts":
            inner = inner * torch.softmax(inner, -1)
        made: Tensor = self.back(torch.tanh(inner))
        return made


class Model(nn.Module):
    """Layers that read the one before and an earlier one; an embedding, maybe tied to the head."""

    def __init__(self, chosen: random.Random, stages: int) -> None:
        super().__init__()
        count = chosen.randint(max(stages, 2), 2 * max(stages, 2))
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            Layer(chosen.choice((*LAYERS, *STATEFUL))) for _ in range(count)
        )
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if chosen.random() < 0.4:
            self.head.weight = self.tokens.weight
        self.asides = [chosen.randint(0, at) for at in range(count)]
        self.stages = sorted(chosen.randrange(stages) for _ in range(count)) if stages else []
        self.residual = chosen.random() < 0.7

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits of the next words."""
        made = [self.tokens(ids)]
        for at, layer in enumerate(self.layers):
            marked = annotate.pipeline_stage(self.stages[at]) if self.stages else nullcontext()
            with marked:
                new = layer(made[-1], made[self.asides[at]])
                made.append(made[-1] + new if self.residual else new)
        logits: Tensor = self.head(made[-1])
        return logits


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the mean cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


@dataclass(frozen=True)
class RandomStep:
    """A training step, and how it is compiled.

    Attributes:
        model: The model, in float64.
        microbatches: Their number.
        rows: Of all of them, which needn't divide.
        clips: Whether gradients are clipped.
        adam: Whether the optimizer is AdamW, or SGD with momentum.
        options: Of the compilation.
    """

    model: Model
    microbatches: int
    rows: int
    clips: bool
    adam: bool
    options: Mapping[str, Any]

    @classmethod
    def of(cls, seed: int, mesh: str = "", *, widths: bool = False) -> RandomStep:
        """Returns the step of a seed.

        Args:
            seed: The seed.
            mesh: The mesh; "" for any.
            widths: Whether stages are at several indices of the pipeline's axis.
        """
        chosen = random.Random(seed)
        torch.manual_seed(seed)
        mesh = mesh or chosen.choice(MESHES)
        processes = int(mesh.partition("pp=")[2][0])
        schedule = chosen.choice([*SCHEDULES])
        stages = processes * SCHEDULES[schedule].turns
        marked = chosen.random() < 0.6
        strategies = ["auto", None, *(f"{preset}:{axis}" for preset, axis in _presets(mesh))]
        model, microbatches = Model(chosen, stages if marked else 0), chosen.choice([1, 2, 3, 4, 6])
        return cls(
            model=model.double(),
            microbatches=microbatches,
            rows=chosen.choice([1, 2, 3]) * microbatches + chosen.choice([0, 0, microbatches // 2]),
            clips=chosen.random() < 0.5,
            adam=chosen.random() < 0.5,
            options={
                "mesh": mesh,
                "pipeline": "pp",
                "schedule": schedule,
                "strategy": chosen.choice(strategies),
                **(_widened(chosen, mesh, processes) if widths else {}),
            },
        )

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        """The batch: ids and targets."""
        generator = torch.Generator().manual_seed(1)
        shape = (self.rows, LENGTH)
        ids, target = (torch.randint(0, WORDS, shape, generator=generator) for _ in range(2))
        return ids, target

    def compiled(self) -> autopar.CompiledModel:
        """Returns the step, compiled."""
        return autopar.compile(
            self.model,
            self.batch,
            loss=loss,
            optimizer=self._optimizer(self.model),
            accumulate=self.microbatches,
            clip_grad_norm=0.5 if self.clips else None,
            **self.options,
        )

    def on_one_device(self) -> list[float]:
        """Returns the losses, and buffers, of a loop that accumulates gradients, by rows."""
        model = copy.deepcopy(self.model)
        optimizer, losses = self._optimizer(model), []
        for _ in range(STEPS):
            optimizer.zero_grad()
            total = 0.0
            parts = (each.tensor_split(self.microbatches) for each in self.batch)
            for ids, target in zip(*parts, strict=True):
                value = loss(model(ids), target) * len(ids) / self.rows
                value.backward()  # type: ignore[no-untyped-call]
                total += value.item()
            if self.clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(total)
        return [*losses, *_buffers(model, model.state_dict())]

    def on_virtual_mesh(self, build: Path) -> list[float]:
        """Returns the losses, and buffers, of a build whose ranks all run here."""
        with autopar.load(build, virtual=True) as trainer:
            return self.trained(trainer)

    def trained(self, trainer: Any) -> list[float]:
        """Returns the losses, and buffers, of a trainer."""
        losses = [float(trainer.step(self.batch)) for _ in range(STEPS)]
        return [*losses, *_buffers(self.model, trainer.state_dict())]

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.adam:
            # A bias in front of a norm has no gradient but rounding, which isn't to be a full step.
            return torch.optim.AdamW(model.parameters(), 0.01, eps=1e-3)
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def _buffers(model: nn.Module, state: Mapping[str, Tensor]) -> list[float]:
    return [number for name, _ in model.named_buffers() for number in state[name].view(-1).tolist()]


def _widened(chosen: random.Random, mesh: str, processes: int) -> dict[str, Any]:
    """Returns the options of a pipeline on a wider mesh, of which stages have different shapes."""
    stages = [chosen.choice([1, 1, 2, 3]) for _ in range(processes)]
    if set(stages) == {1}:
        stages[chosen.randrange(processes)] = 2
    axes = [f"pp={sum(stages)}" if each.startswith("pp=") else each for each in mesh.split(",")]
    along = ["data:pp", "fsdp:pp", "tensor:pp"]
    others = [f"{preset}:{axis}" for preset, axis in _presets(mesh)]
    strategy = ""
    if chosen.random() < 0.6:
        strategy = ",".join([chosen.choice(along), *chosen.sample(others, min(1, len(others)))])
    return {
        "mesh": ",".join(axes),
        "stages": tuple(stages),
        "strategy": strategy or chosen.choice(["auto", None]),
    }


def _presets(mesh: str) -> list[tuple[str, str]]:
    axes = [part.partition("=")[0] for part in mesh.split(",")]
    known = {"dp": ("data", "fsdp"), "tp": ("tensor",)}
    return [(preset, axis) for axis in axes for preset in known.get(axis, ())]
