"""What microbatches add to a training step: ops, and CPU seconds of capture and passes.

    python benchmarks/microbatches.py                          by search, and by a preset
    python benchmarks/microbatches.py --microbatches 1 2 64 --mesh 3 --strategy data:0

A small GPT-2, sequence 32, AdamW. Once the batch has 64 rows, so a microbatch has fewer the
more there are, and what search takes depends on them; once each microbatch has 64.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import NamedTuple

import torch
from language_models import gpt2

from autopar.frontend.torch import Recipe, capture
from autopar.pipeline import CompileOptions, compile_program

ROWS, LENGTH = 64, 32
SIZES = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": LENGTH}


class Taken(NamedTuple):
    """What a step is, and takes to compile.

    Attributes:
        serial, rank: Ops of the serial program, and of a rank's, functions once.
        seconds: CPU seconds.
    """

    serial: int
    rank: int
    seconds: float


def taken(rows: int, microbatches: int, mesh: str, strategy: str) -> Taken:
    """Compiles a step."""
    model = gpt2(**SIZES)
    ids = torch.zeros(rows, LENGTH, dtype=torch.long)
    recipe = Recipe(optimizer=torch.optim.AdamW(model.parameters()), accumulate=microbatches)
    gc.collect()
    start = time.process_time()
    program = capture(model, {"input_ids": ids, "labels": ids}, recipe).program
    done = compile_program(program, CompileOptions.from_text(mesh=mesh, strategy=strategy))
    seconds = time.process_time() - start
    functions = done.deployment.programs[0].functions.values()
    return Taken(len(program.main.ops), sum(len(each.ops) for each in functions), seconds)


def least(repeat: int, rows: int, microbatches: int, mesh: str, strategy: str) -> Taken:
    """Returns the run that took the least time."""
    runs = [taken(rows, microbatches, mesh, strategy) for _ in range(repeat)]
    return min(runs, key=lambda run: run.seconds)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--mesh", default="2x2")
    parser.add_argument("--strategy", nargs="+", default=["auto", "data:0,tensor:1"])
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    taken(ROWS, 2, given.mesh, given.strategy[0])  # loads what is imported late
    print("| strategy | microbatches | ops | of a rank | CPU s | as large: ops of a rank | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for strategy in given.strategy:
        for number in given.microbatches:
            step = least(given.repeat, ROWS, number, given.mesh, strategy)
            large = least(given.repeat, ROWS * number, number, given.mesh, strategy)
            print(
                f"| {strategy} | {number} | {step.serial:,} | {step.rank:,} | {step.seconds:.1f} |"
                f" {large.rank:,} | {large.seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
