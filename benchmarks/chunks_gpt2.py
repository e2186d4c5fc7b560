"""Measures GPT-2 small whose head is computed in parts, as ratios to the whole, on a GPU or a CPU.

    torchrun --nproc-per-node 1 benchmarks/chunks_gpt2.py        32 rows of 1,024 tokens, bfloat16
    torchrun --nproc-per-node 1 benchmarks/chunks_gpt2.py --rows 1 --tokens 256 --parts 1 4

One process, on a GPU where there is one; one step trains with AdamW. For each number of parts: the
peak of what is allocated in a step, what is predicted of it, both with what is stored; and the
median time of a step. The same model by torch.compile stands in front.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from chunks import allocated_bytes
from chunks_by_memory import shifted
from torch import Tensor, nn

import autopar
from autopar.cost import memory_timeline

MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """What is trained, and how often."""

    layers: int
    rows: int
    tokens: int
    dtype: torch.dtype
    steps: int

    def model(self) -> nn.Module:
        """Returns the model, with the same weights every time."""
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        config = GPT2Config(n_layer=self.layers, n_positions=self.tokens, use_cache=False)
        model: nn.Module = GPT2LMHeadModel(config)
        return model.to(self.dtype)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Returns tokens, twice."""
        ids = torch.randint(0, 50257, (self.rows, self.tokens))
        return ids, ids


def peak_bytes(step: Callable[[], Any]) -> int:
    """Returns the most that is allocated during a step, on a CPU beyond what is there before."""
    if not torch.cuda.is_available():
        return allocated_bytes(step)
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


def milliseconds(step: Callable[[], Any], count: int) -> float:
    """Returns the median time of a step."""
    wait: Callable[[], Any] = torch.cuda.synchronize if torch.cuda.is_available() else _nothing
    taken = []
    for _ in range(count):
        wait()
        start = time.perf_counter()
        step()
        wait()
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def _nothing() -> None:
    """A CPU needn't be waited for."""


def _forward(model: nn.Module, ids: Tensor, target: Tensor) -> Tensor:
    return shifted(model(ids), target)


def by_torch(sizes: Sizes) -> tuple[float, float]:
    """Returns the peak, and the time of a step that torch.compile makes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = sizes.model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids, target = (each.to(device) for each in sizes.batch())
    forward: Any = torch.compile(partial(_forward, model, ids, target))

    def step() -> None:
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    step()
    return peak_bytes(step), milliseconds(step, sizes.steps)


def by_autopar(sizes: Sizes, parts: int, *, torch_compile: bool) -> tuple[float, float, float]:
    """Returns the peak, what is predicted of it, and the time of a step."""
    model, batch = sizes.model(), sizes.batch()
    made = autopar.compile(
        model,
        batch,
        mesh="1",
        loss=shifted,
        optimizer=torch.optim.AdamW(model.parameters()),
        chunks={"lm_head": parts} if parts > 1 else {},
    )
    timeline = memory_timeline(made.deployment.programs[0])
    predicted = timeline.peak_bytes
    if not torch.cuda.is_available():
        predicted -= timeline.stored_bytes
    with tempfile.TemporaryDirectory() as folder:
        made.save(folder)
        with autopar.load(folder, torch_compile=torch_compile) as trainer:
            step = partial(trainer.step, batch)
            step()
            return peak_bytes(step), predicted, milliseconds(step, sizes.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, size in {"layers": 12, "rows": 32, "tokens": 1024, "steps": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--torch-compile", action="store_true", help="of autopar's programs, too")
    given = parser.parse_args()
    sizes = Sizes(given.layers, given.rows, given.tokens, getattr(torch, given.dtype), given.steps)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    print(f"on {device}, torch {torch.__version__}")
    print(f"{'':16}{'MiB':>9}{'predicted':>11}{'ratio':>8}{'ms':>9}{'ratio':>8}")
    taken, time_ms = by_torch(sizes)
    print(f"{'torch.compile':16}{taken / MIB:9.0f}{'':19}{time_ms:9.1f}", flush=True)
    whole: tuple[float, float] | None = None
    for parts in given.parts:
        taken, predicted, time_ms = by_autopar(sizes, parts, torch_compile=given.torch_compile)
        whole = whole or (taken, time_ms)
        print(
            f"{f'{parts} parts':16}{taken / MIB:9.0f}{predicted / MIB:11.0f}"
            f"{taken / whole[0]:8.3f}{time_ms:9.1f}{time_ms / whole[1]:8.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
