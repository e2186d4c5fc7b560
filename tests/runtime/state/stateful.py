"""Modules whose `forward` writes buffers, and what they return call by call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from autopar.modules import compile

BATCH, TOKENS, WIDTH, LENGTH = 3, 2, 8, 13


class Cache(nn.Module):
    """Attention over the keys of all calls, which a buffer without a place in state dicts holds."""

    cache: Tensor
    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(BATCH, LENGTH, WIDTH), persistent=False)
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        places = self.position + torch.arange(x.shape[1])
        self.cache.index_copy_(1, places, self.key(x).detach())
        self.position.add_(x.shape[1])
        asked = self.key(x) @ self.cache.transpose(1, 2)
        return torch.softmax(asked, -1) @ self.cache


class Assigned(nn.Module):
    """A running sum that is a new tensor after each call, and the buffer is what is returned."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total * 0.5 + x
        return self.total


class Last(nn.Module):
    """What the last call was given, and what it returned."""

    seen: Tensor
    made: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5, 6))
        self.register_buffer("made", torch.ones(5, 6, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x - self.seen + self.made
        self.seen.copy_(x)
        self.made.copy_(y)
        return {"seen": y, "view": self.seen[1:]}


class Swapped(nn.Module):
    """Two buffers that change places, one of which has two names."""

    one: Tensor
    other: Tensor
    same: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.arange(30.0).view(5, 6))
        self.register_buffer("other", torch.ones(5, 6))
        self.register_buffer("same", self.one)

    def forward(self, x: Tensor) -> Tensor:
        first = self.one.clone()
        self.one.copy_(self.other)
        self.other.copy_(first)
        return x + self.same


class Silent(nn.Module):
    """Returns nothing."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(5, 6))

    def forward(self, x: Tensor) -> None:
        self.total.add_(x)


@dataclass(frozen=True)
class Case:
    """A module with state.

    Attributes:
        make: Makes it.
        shape: Of its input.
        pins: Layouts that split its buffers, by the axes of a mesh of one or two.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    pins: Mapping[str, Sequence[Sequence[str] | int]] = field(default_factory=dict)


CASES: Mapping[str, Case] = {
    "cache": Case(Cache, (BATCH, TOKENS, WIDTH), {"cache": [-1, ["a", "b"], -1]}),
    "cache by batch": Case(Cache, (BATCH, TOKENS, WIDTH), {"cache": [["b"], -1, ["a"]]}),
    "batch norm": Case(lambda: nn.BatchNorm1d(7), (5, 7), {"running_mean": [["a", "b"]]}),
    "assigned": Case(Assigned, (5, 6), {"total": [["a"], ["b"]]}),
    "last": Case(Last, (5, 6), {"seen": [["b"], ["a"]], "made": [["a", "b"], -1]}),
    "swapped": Case(Swapped, (5, 6), {"one": [["a", "b"], -1]}),
    "silent": Case(Silent, (5, 6), {"total": [-1, ["b", "a"]]}),
}

MESHES = ("a=1,b=1", "a=2,b=1", "a=2,b=2", "a=3,b=2")


def made(name: str) -> nn.Module:
    """Returns a module, in the mode for training, as it is before its first call."""
    torch.manual_seed(0)
    return CASES[name].make()


def calls(name: str, count: int = 3) -> list[Tensor]:
    """Returns the inputs of some calls."""
    drawn = torch.Generator().manual_seed(1)
    return [torch.randn(CASES[name].shape, generator=drawn) for _ in range(count)]


def stateful_build(folder: Path, name: str, mesh: str, pinned: bool = True) -> Path:
    """Returns a build of a module."""
    pins = CASES[name].pins if pinned else {}
    shard = {each: list(entries) for each, entries in pins.items()}
    compile(made(name), calls(name)[0], mesh=mesh, strategy="none", shard=shard).save(folder)
    return folder


def expected(name: str, inputs: Sequence[Tensor]) -> list[dict[str, Tensor]]:
    """Returns what the module itself returns, and its buffers after each call, by label."""
    model = made(name)
    found = []
    with torch.no_grad():
        for x in inputs:
            result = model(x)
            outputs = result if isinstance(result, dict) else {"output": result}
            state = {f"state/{key}": buffer for key, buffer in model.named_buffers()}
            plain = {key: each for key, each in outputs.items() if each is not None}
            found.append(copy.deepcopy({**plain, **state}))
    return found
