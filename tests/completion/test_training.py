"""Training steps on any mesh do what one device does, and reduce each gradient once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from tests.captured import Captured, check, collectives, compiled
from tests.training import ADAMW, Loss, Step, training

VOCABULARY, BATCH, SEQUENCE, WIDTH, HEADS = 40, 12, 12, 24, 4


class Block(nn.Module):
    """A causal transformer block, layer norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape
        y = self.ln1(x)
        q, k, v = (
            part(y).view(batch, sequence, HEADS, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / (width // HEADS) ** 0.5
        mask = torch.ones(sequence, sequence, dtype=torch.bool).tril()
        shares = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(batch, sequence, width))
        hidden = torch.nn.functional.gelu(self.up(self.ln2(x)), approximate="tanh")
        return x + self.down(hidden)


class Language(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.ln(x) @ self.wte.weight.T


def cross_entropy(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Of the next tokens."""
    logits = module(batch["tokens"])
    picked = logits.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
    return (logits.logsumexp(-1) - picked).mean()


STEPS = {
    "sgd": Step(),
    "adamw": Step(states=ADAMW, clip=0.1),
    "accumulated": Step(states=ADAMW, clip=0.1, microbatches=2),
}


@cache
def language(step: str) -> Captured:
    """Returns a training step of a language model of one layer."""
    torch.manual_seed(0)
    shape = (BATCH, SEQUENCE)
    batch = {name: torch.randint(0, VOCABULARY, shape) for name in ("tokens", "labels")}
    loss: Loss = cross_entropy  # type: ignore[assignment]
    return training(Language(1), loss, batch, STEPS[step])


@pytest.mark.parametrize("mesh", ["a=2", "a=3"])
@pytest.mark.parametrize("preset", ["ddp", "zero1", "zero2", "fsdp", "tensor"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_that_of_one_device(step: str, preset: str, mesh: str) -> None:
    captured = language(step)
    check(captured, compiled(captured, mesh, f"{preset}:a"), 1e-5)


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("a=2,b=2", "ddp:a,tensor:b"),
        ("a=2,b=3", "zero1:a,tensor:b"),
        ("a=2,b=2", "zero2:a,tensor:b"),
        ("a=2,b=3", "fsdp:a,tensor:b"),
        ("a=2,b=2,c=2", "ddp:a,fsdp:b,tensor:c"),
    ],
)
def test_presets_combine(mesh: str, strategy: str) -> None:
    captured = language("adamw")
    check(captured, compiled(captured, mesh, strategy), 1e-5)


def moved(step: str, mesh: str, strategy: str, kind: str) -> int:
    """Returns the bytes that collectives of a kind leave on a rank."""
    done = compiled(language(step), mesh, strategy)
    return sum(one.bytes for one in collectives(done) if one.kind == kind)


def parameter_bytes(step: str, least_dims: int = 0) -> int:
    """Returns the bytes of all parameters."""
    tensors = language(step).weights.items()
    return sum(4 * t.numel() for n, t in tensors if "/" not in n and t.dim() >= least_dims)


def test_data_parallel_processes_reduce_each_gradient_once() -> None:
    """And the loss. The tied table is reduced once, and once only in spite of two uses."""
    assert moved("sgd", "a=2", "ddp", "all_reduce") == parameter_bytes("sgd") + 4


@pytest.mark.parametrize(("preset", "gathers"), [("zero1", 1), ("zero2", 1), ("fsdp", 2)])
def test_what_is_kept_split_is_scattered_once_and_gathered(preset: str, gathers: int) -> None:
    """Vectors are small enough to stay whole; positions aren't read in the backward pass."""
    split = parameter_bytes("adamw", 2)
    assert moved("adamw", "a=2", preset, "reduce_scatter") == split // 2
    positions = 4 * SEQUENCE * WIDTH if preset == "fsdp" else 0
    assert moved("adamw", "a=2", preset, "all_gather") == gathers * split - positions


@pytest.mark.parametrize("preset", ["ddp", "zero1", "zero2", "fsdp"])
def test_gradients_stay_pending_while_they_are_accumulated(preset: str) -> None:
    """The scalar losses of the microbatches don't."""
    kind = "all_reduce" if preset == "ddp" else "reduce_scatter"
    accumulated, at_once = (moved(step, "a=2", preset, kind) for step in ("accumulated", "adamw"))
    assert at_once <= accumulated <= at_once + 4


def test_no_gathered_parameter_is_kept_for_the_backward_pass() -> None:
    done = compiled(language("sgd"), "a=2", "fsdp")
    phase = {name: op.phase for op in done.partitioned.main.ops for name in op.results}
    gathered = {o.results[0] for o in done.partitioned.main.ops if o.kind == "comm.all_gather"}
    for op in done.partitioned.main.ops:
        assert all(phase[name] == op.phase for name in op.operands if name in gathered)
