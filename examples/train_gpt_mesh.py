"""Trains the GPT of train_gpt.py on a mesh: the step is compiled once, and every rank runs it.

    python examples/train_gpt_mesh.py compile --mesh dp=2,tp=4
    torchrun --nproc-per-node 8 examples/train_gpt_mesh.py train --checkpoints build/state

Started again after whatever ended it, the second goes on from the newest checkpoint.
docs/training.md explains it.
"""

from __future__ import annotations

import argparse

import torch.distributed as dist
from train_gpt import GPT, STEPS, adamw, batch, criterion

import autopar


def compile_step(build: str, mesh: str, strategy: str) -> None:
    """Compiles a training step: no rank is needed for it, and nothing is computed."""
    model = GPT()
    step = autopar.compile(
        model, batch(0), mesh=mesh, strategy=strategy, loss=criterion, optimizer=adamw(model)
    )
    step.save(build)


def train(build: str, steps: int, checkpoints: str | None, every: int, keep: int) -> None:
    """What every rank does. It goes on from the newest checkpoint if there is one.

    The batch follows from the number of the step, so what was done before needn't be known.
    """
    with autopar.load(build, resume=checkpoints) as trainer:
        while trainer.steps < steps:
            loss = trainer.step(batch(trainer.steps))
            if trainer.steps % 5 == 0 and dist.get_rank() == 0:
                print(f"step {trainer.steps:2}  loss {loss.item():.4f}", flush=True)
            if checkpoints is not None and trainer.steps % every == 0:
                trainer.save_checkpoint(checkpoints, keep=keep, wait=False)


def main() -> None:
    """Compiles, or is one rank that trains."""
    parser = argparse.ArgumentParser(description="Train a small GPT on a mesh.")
    parser.add_argument("action", choices=["compile", "train"])
    parser.add_argument("--build", default="build/gpt", help="the build folder")
    parser.add_argument("--mesh", default="dp=2,tp=4", help="what to compile for")
    parser.add_argument("--strategy", default="", help="presets, as ddp:dp,tensor:tp")
    parser.add_argument("--steps", type=int, default=STEPS, help="train to this step")
    parser.add_argument("--checkpoints", help="a folder to go on from, and to write to")
    parser.add_argument("--every", type=int, default=10, help="steps from one to the next")
    parser.add_argument("--keep", type=int, default=3, help="how many stay there")
    options = parser.parse_args()
    if options.action == "compile":
        compile_step(options.build, options.mesh, options.strategy)
    else:
        train(options.build, options.steps, options.checkpoints, options.every, options.keep)


if __name__ == "__main__":
    main()
