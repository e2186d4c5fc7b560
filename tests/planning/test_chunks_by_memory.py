"""What a limit of memory lets the compiler compute in parts: right, and within the limit."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar.annotate import ChunkPin, parse_mesh
from autopar.compiled import CompiledModel
from autopar.cost import Cluster, evaluate, memory_timeline, peak_rank_timeline
from autopar.frontend.torch import Recipe, capture
from autopar.frontend.torch.capture.capture import Captured
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline import CompileOptions, compile_program
from autopar.pipeline.decided import Compiled
from autopar.runtime import run
from tests.end_to_end.test_chunks import EFFORT
from tests.judges.tracking import executed

CLASSES = 1999


class Words(nn.Module):
    """Tied embeddings of many words, attention whose scores are there, a shifted loss."""

    def __init__(self, tied: bool = True, length: int = 24, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, CLASSES, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        q, k, v = self.qkv(x).unflatten(-1, (2, -1)).transpose(1, 2).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        x = x + self.out((F.dropout(scores, 0.1, self.training) @ v).transpose(1, 2).flatten(2))
        logits: Tensor = self.head(x + self.down(F.gelu(self.up(x))))
        return logits


def shifted(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@cache
def captured() -> Captured:
    model, batch, optimizer = made()
    return capture(model, batch, Recipe(loss=shifted, optimizer=optimizer))


def made() -> tuple[Words, tuple[Tensor, Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Words().double()
    ids = torch.randint(0, CLASSES, (4, 24))
    return model, (ids, ids), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def planned(limit: int | None, mesh: str = "1", **said: Any) -> Compiled:
    said = {"strategy": None if mesh == "1" else "auto", "effort": EFFORT, **said}
    options = CompileOptions(parse_mesh(mesh), Cluster.load("cpu"), memory_bytes=limit, **said)
    return compile_program(captured().program, options)


def compiled(mesh: str = "1", **said: Any) -> CompiledModel:
    model, batch, optimizer = made()
    said = {"mesh": mesh, "loss": shifted, "optimizer": optimizer, "effort": EFFORT, **said}
    return autopar.compile(model, batch, **said)


def trained(step: CompiledModel, folder: Path) -> tuple[list[float], Mapping[str, Tensor]]:
    step.save(folder)
    _, batch, _ = made()
    with autopar.load(folder, virtual=True) as trainer:
        return [float(trainer.step(batch)) for _ in range(3)], trainer.state_dict()


def seconds(found: Compiled) -> float:
    return evaluate(found.partitioned, found.options.cluster).serialized_seconds


def peak(found: Compiled) -> int:
    return peak_rank_timeline(found.partitioned).peak_bytes


@cache
def unlimited(mesh: str = "1") -> Compiled:
    return planned(None, mesh)


def test_scores_of_words_are_never_there_as_a_whole() -> None:
    whole = peak(unlimited())
    found = planned(whole * 2 // 3)
    assert peak(found) <= whole * 2 // 3
    assert found.options.chunks
    said = (e.detail for e in found.report if (e.category, e.subject) == ("search", "chunks"))
    assert "->" in next(said)
    # With what is computed again alone, this takes longer, or isn't possible.
    with contextlib.suppress(DoesNotFit):
        assert seconds(planned(whole * 2 // 3, chunks=())) > seconds(found)


def test_what_is_predicted_is_what_a_tracker_sees() -> None:
    limit = peak(unlimited()) * 2 // 3
    (program,) = planned(limit).deployment.programs
    measured = executed(program, captured().weights).peak_bytes
    assert measured == memory_timeline(program).peak_bytes <= limit


@pytest.mark.parametrize(("mesh", "share"), [("1", 0.8), ("1", 0.6), ("3", 0.7), ("2x2", 0.6)])
def test_results_are_those_of_the_whole(mesh: str, share: float, tmp_path: Path) -> None:
    losses, stored = trained(compiled(), tmp_path / "whole")
    limit = int(share * peak(unlimited(mesh)))
    found = trained(compiled(mesh, memory=limit), tmp_path / "chunks")
    assert found[0] == pytest.approx(losses, rel=1e-9)
    for name, tensor in stored.items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-9, atol=1e-11)


def test_more_memory_is_never_slower() -> None:
    whole = peak(unlimited())
    taken = []
    for share in (1.1, 1.0, 0.95, 0.8, 0.7, 0.6, 0.55, 0.5):
        try:
            taken.append(seconds(planned(int(share * whole))))
        except DoesNotFit:
            break
    assert len(taken) > 4
    assert taken == sorted(taken)


class Layers(nn.Module):
    """Residual layers: what is largest is within, and is best cut along what is summed there."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def layers(**said: Any) -> CompiledModel:
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(256, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = {"mesh": "1", "loss": F.mse_loss, "optimizer": optimizer, "effort": EFFORT, **said}
    return autopar.compile(model, (x, x), **said)


def test_a_limit_finds_what_a_pin_along_the_batch_finds() -> None:
    pinned = layers(chunks={"add": (0, 16)})
    held = peak_rank_timeline(pinned.partitioned).peak_bytes
    within = peak_rank_timeline(layers(chunks={"layers.*": (1, 16)}).partitioned).peak_bytes
    found = peak_rank_timeline(layers(memory=held).partitioned).peak_bytes
    assert found <= held < within


def test_a_plan_says_what_is_in_chunks(tmp_path: Path) -> None:
    limit = peak(unlimited()) * 2 // 3
    first = compiled(memory=limit)
    autopar.save_plan(first, tmp_path / "plan.yaml")
    second = compiled(plan=tmp_path / "plan.yaml")
    assert first.options.chunks
    assert second.deployment == first.deployment
    first.save(tmp_path / "build")
    assert str(autopar.explain(tmp_path / "build"))


@pytest.mark.parametrize("mesh", ["1", "3"])
def test_parts_of_microbatches(mesh: str, tmp_path: Path) -> None:
    whole = compiled(mesh, accumulate=2)
    limit = int(0.7 * peak_rank_timeline(whole.partitioned).peak_bytes)
    parts = compiled(mesh, accumulate=2, memory=limit)
    assert parts.options.chunks
    assert peak_rank_timeline(parts.partitioned).peak_bytes <= limit
    losses, stored = trained(compiled(accumulate=2), tmp_path / "whole")
    found = trained(parts, tmp_path / "parts")
    assert found[0] == pytest.approx(losses, rel=1e-9)
    for name, tensor in stored.items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-9, atol=1e-11)


def test_parts_of_a_stage(tmp_path: Path) -> None:
    said = {"accumulate": 2, "pipeline": "pp", "strategy": None}
    whole = compiled("pp=2", **said)
    limit = int(0.75 * peak_rank_timeline(whole.partitioned).peak_bytes)
    parts = compiled("pp=2", memory=limit, **said)
    assert parts.options.chunks
    assert peak_rank_timeline(parts.partitioned).peak_bytes <= limit
    losses, _ = trained(compiled(accumulate=2), tmp_path / "whole")
    assert trained(parts, tmp_path / "parts")[0] == pytest.approx(losses, rel=1e-9)


def test_a_module_without_a_loss_fits_too(tmp_path: Path) -> None:
    """Inference: nothing is kept for a backward pass, so only parts can help."""
    model = nn.Sequential(nn.Linear(32, 4096), nn.GELU(), nn.Linear(4096, 32)).eval()
    x = torch.randn(512, 32)
    whole = autopar.compile(model, x, mesh="1")
    limit = peak_rank_timeline(whole.partitioned).peak_bytes // 4
    found = autopar.compile(model, x, mesh="1", memory=limit)
    assert peak_rank_timeline(found.partitioned).peak_bytes <= limit
    found.save(tmp_path)
    (ran,) = run(tmp_path, (x,), virtual=True).values()
    torch.testing.assert_close(ran, model(x))
    with pytest.raises(autopar.AutoparError, match="limit"):
        autopar.compile(model, x, mesh="1", memory=limit, chunks={})


def test_who_says_what_is_in_chunks_is_obeyed() -> None:
    pins = (ChunkPin("head", 2),)
    whole = peak(unlimited())
    assert planned(whole * 9 // 10, chunks=pins).options.chunks == pins
