"""Measures what `memory=` makes of GPT-2: with parts one by one, and by computing again alone.

    python benchmarks/chunks_by_memory.py
    python benchmarks/chunks_by_memory.py --layers 4 --tokens 512 --shares 0.6

A training step of GPT-2 small, batch 2, 1,024 tokens, one process with one thread. For each limit,
a part of what the step holds at most without one: predicted seconds and the least CPU seconds of
two steps, both beside those without a limit; the peak of what is allocated besides what is stored,
as torch's profiler sees it and as predicted; and CPU seconds of compiling. Losses are printed, too:
they are those of the whole.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from chunks import allocated_bytes
from torch import Tensor
from torch.nn import functional as F

import autopar
from autopar.cost import peak_rank_timeline

WAYS: Mapping[str, Mapping[str, int] | None] = {"parts": None, "again": {}}
"""What is said of chunks: nothing, and that there are none."""


def shifted(found: Any, ids: Tensor) -> Tensor:
    """Returns the loss of the next token."""
    logits = found.logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@dataclass(frozen=True)
class Made:
    """A compiled step.

    Attributes:
        step: The step.
        ids: Its batch.
        compile_seconds: CPU seconds that it took to compile.
    """

    step: Any
    ids: Tensor
    compile_seconds: float


def made(layers: int, tokens: int, **said: Any) -> Made:
    """Returns a step of a language model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False))
    ids = torch.randint(0, 50257, (2, tokens))
    optimizer = torch.optim.AdamW(model.parameters())
    start = time.process_time()
    step = autopar.compile(model, (ids, ids), mesh="1", loss=shifted, optimizer=optimizer, **said)
    return Made(step, ids, time.process_time() - start)


def run(done: Made) -> tuple[float, int, list[float]]:
    """Returns the least CPU seconds of two steps, what they allocate at most, and losses."""
    with tempfile.TemporaryDirectory() as folder:
        done.step.save(folder)
        with autopar.load(folder, virtual=True) as trainer:
            losses, seconds = [], []
            for _ in range(2):
                start = time.process_time()
                losses.append(float(trainer.step((done.ids, done.ids))))
                seconds.append(time.process_time() - start)
            taken = allocated_bytes(lambda: trainer.step((done.ids, done.ids)))
    return min(seconds), taken, losses


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--shares", type=float, nargs="*", default=(0.8, 0.6, 0.5))
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = made(options.layers, options.tokens)
    peak = peak_rank_timeline(whole.step.partitioned).peak_bytes
    base = whole.step.price().seconds
    alone, _, losses = run(whole)
    print(f"without a limit: {peak / 2**20:.0f} MiB, {alone:.1f} CPU s a step, losses {losses}")
    print(f"{'limit':>9}{'':10}{'predicted':>11}{'measured':>10}{'MiB':>8}{'of':>7}{'compile':>9}")
    for share in options.shares:
        for name, chunks in WAYS.items():
            try:
                limit = int(share * peak)
                done = made(options.layers, options.tokens, memory=limit, chunks=chunks)
            except autopar.AutoparError as error:
                print(f"{share:>9}{name:>10}  {str(error)[:60]}")
                continue
            seconds, taken, losses = run(done)
            timeline = peak_rank_timeline(done.step.partitioned)
            predicted = (timeline.peak_bytes - timeline.stored_bytes) / 2**20
            ratio = done.step.price().seconds / base
            print(
                f"{share:>9}{name:>10}{ratio:>11.3f}{seconds / alone:>10.3f}{taken / 2**20:>8.0f}"
                f"{predicted:>7.0f}{done.compile_seconds:>9.1f}  {losses}",
                flush=True,
            )


if __name__ == "__main__":
    main()
