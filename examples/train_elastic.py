"""Trains the GPT of train_gpt.py on as many processes as there are, now more and then fewer.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nproc-per-node 4 --max-restarts 3 examples/train_elastic.py
    ^C                                                     or a kill, or a host that is lost
    torchrun --nproc-per-node 2 --max-restarts 3 examples/train_elastic.py

The second command goes on where the first one was, on a mesh of two: for a number of processes that
it never had the job compiles first. Two "hosts" of two processes each, of which one may come and
go, are two terminals in which this runs:

    torchrun --nnodes 1:2 --nproc-per-node 2 --max-restarts 9 --rdzv-backend c10d \\
        --rdzv-endpoint localhost:29400 --rdzv-id gpt examples/train_elastic.py --pause 0.3

What becomes of the steps:

* SIGTERM, by which launchers and schedulers announce an end, or ^C, is a wish to stop. It travels
  with what ranks compare in each step, so all of them stop behind the same one, save it, and lose
  none. Their exit code is 143: the training isn't at its end, and who started it starts it again.
  torchrun itself ends with 1 then, whatever the code of its processes and whoever asked to stop.
* After a kill the steps since the last checkpoint are done again, with the same losses.

Losses are those of one device up to rounding, and the same bit by bit on the same number of
processes. docs/training.md explains it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from train_gpt import GPT, adamw, batch, criterion

import autopar

STOPPED = 128 + signal.SIGTERM
"""The exit code of a training that was asked to stop, as shells have it."""


def compile_step(world_size: int) -> autopar.CompiledModel:
    """Compiles a training step for a number of processes."""
    model = GPT()
    return autopar.compile(
        model, batch(0), mesh=mesh_of(world_size), loss=criterion, optimizer=adamw(model)
    )


def mesh_of(world_size: int) -> str:
    """Returns the mesh for a number of processes."""
    return f"dp=2,tp={world_size // 2}" if world_size % 2 == 0 else f"dp={world_size}"


def train(builds: str, checkpoints: str, steps: int, every: int, pause: float) -> bool:
    """What every rank does; returns whether all steps are done."""
    with autopar.elastic.load(compile_step, builds, resume=checkpoints) as trainer:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: trainer.request_stop())
        while trainer.steps < steps and not trainer.stopping:
            loss = trainer.step(batch(trainer.steps))
            if os.environ.get("RANK", "0") == "0":
                size = os.environ.get("WORLD_SIZE", "1")
                # Nine digits are all of a float.
                print(f"step {trainer.steps:2}  loss {loss.item():.9g}  on {size}", flush=True)
            if trainer.stopping or trainer.steps % every == 0:
                trainer.save_checkpoint(checkpoints, keep=3, wait=False)
            time.sleep(pause)
        return trainer.steps >= steps


def main() -> None:
    """Is one rank that trains."""
    parser = argparse.ArgumentParser(description="Train a small GPT on any number of processes.")
    parser.add_argument("--builds", default="build/elastic", help="a build for each number")
    parser.add_argument("--checkpoints", default="build/elastic-state", help="where to go on from")
    parser.add_argument("--steps", type=int, default=40, help="train to this step")
    parser.add_argument("--every", type=int, default=10, help="steps from one save to the next")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    options = parser.parse_args()
    done = train(options.builds, options.checkpoints, options.steps, options.every, options.pause)
    sys.exit(0 if done else STOPPED)


if __name__ == "__main__":
    main()
