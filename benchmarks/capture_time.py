"""CPU seconds of capturing training steps, beside those of AOTAutograd alone.

    python benchmarks/capture_time.py
    python benchmarks/capture_time.py --models llama --rounds 5

Capturing traces forward and backward by AOTAutograd, as `torch.compile` does behind Dynamo, and
adds what a step is beyond them: conditions on data, writes to buffers, the optimizer, the program.
Both take turns in one process, on models without values; each row has medians, and the least and
largest ratio of a round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from language_models import LLAMA_8B, bert, gpt2, llama, t5, tokens
from torch import Tensor, nn
from torch._export.utils import _compiling_state_context
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from autopar.frontend.torch import Recipe, capture
from autopar.frontend.torch.capture.fake import fake_like, fake_model

Batch = Mapping[str, Tensor]

MODELS: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "llama": (lambda: llama(LLAMA_8B).bfloat16(), 2048),
    "gpt2": (gpt2, 1024),
    "bert": (bert, 512),
    "t5": (t5, 512),
}
"""Models, and lengths of their inputs."""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':8}{'ops':>8}{'AOTAutograd':>14}{'capture':>10}{'ratio':>8}  least, largest")
    for name in options.models:
        _row(name, options.rounds)


def _row(name: str, rounds: int) -> None:
    make, length = MODELS[name]
    with torch.device("meta"):
        model, batch = make(), tokens(8, length)
    recipe = Recipe(optimizer=torch.optim.AdamW(model.parameters()))
    ops = len(capture(model, batch, recipe).program.main.ops)  # The first calls load modules.
    _trace(model, batch)
    pairs = [
        (_seconds(lambda: _trace(model, batch)), _seconds(lambda: capture(model, batch, recipe)))
        for _ in range(rounds)
    ]
    alone, whole = (median(each) for each in zip(*pairs, strict=True))
    ratios = sorted(whole / alone for alone, whole in pairs)
    print(
        f"{name:8}{ops:8,}{alone:12.2f} s{whole:8.2f} s{median(ratios):8.2f}"
        f"  {ratios[0]:.2f}, {ratios[-1]:.2f}"
    )


def _seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


class _Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Tensor]:
        return (self.model(**batch).loss,)


def _trace(model: nn.Module, batch: Batch) -> None:
    fake = fake_model(model)
    given = {name: fake_like(each, fake.mode) for name, each in batch.items()}
    with ExitStack() as stack, fake.mode, _compiling_state_context():
        aot_export_joint_with_descriptors(stack, _Loss(fake.module), (given,), decompositions={})


if __name__ == "__main__":
    main()
