"""A rank of a long training run of a small network, whose every loss is compared.

    python benchmarks/soak_training.py prepare build/soak/train-4 --mesh dp=2,tp=2 --steps 5000
    torchrun --nproc-per-node 4 benchmarks/soak_training.py train build/soak/train-4 --steps 5000

`prepare` compiles the step under `fsdp:dp,tensor:tp` and trains the same network on one device,
whose losses it keeps beside the build. `train` is a rank; it ends with 1 when a loss is another.
`benchmarks/soak.py` starts this many times.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import autopar

TOLERANCE = 1e-4
"""Largest relative difference of losses; rounding alone leaves 3e-7 after a thousand steps."""
LEARNING_RATE = 1e-3


def make_network(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns the network, 7,112 parameters, and its optimizer."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        *(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()),
        nn.Linear(64, 8),
    )
    return network, torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns the features, float32[16, 32], and labels, int64[16], of a step."""
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(16, 32, generator=drawn), torch.randint(0, 8, (16,), generator=drawn)


def prepare(folder: Path, mesh: str, steps: int, seed: int) -> None:
    """Writes the build, and the losses of one device, float32[steps]."""
    network, optimizer = make_network(seed)
    autopar.compile(
        *(network, batch(0)),
        mesh=mesh,
        strategy="fsdp:dp,tensor:tp",
        loss=nn.functional.cross_entropy,
        optimizer=optimizer,
    ).save(folder / "build")
    losses = []
    for step in range(steps):
        features, labels = batch(step)
        loss = nn.functional.cross_entropy(network(features), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    np.save(folder / "losses.npy", torch.stack(losses).numpy())


def train(folder: Path, steps: int) -> int:
    """Trains as one of the started processes and returns its exit code."""
    expected = np.load(folder / "losses.npy")
    with autopar.load(folder / "build", timeout=300) as trainer:
        for step in range(steps):
            loss = float(trainer.step(batch(step)))
            if not abs(loss - expected[step]) <= TOLERANCE * abs(expected[step]):
                print(f"step {step}: loss {loss}, on one device {expected[step]}", file=sys.stderr)
                return 1
    return 0


def main() -> int:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["prepare", "train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mesh", default="dp=2,tp=2")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the first weights")
    options = parser.parse_args()
    if options.command == "train":
        return train(options.folder, options.steps)
    options.folder.mkdir(parents=True, exist_ok=True)
    prepare(options.folder, options.mesh, options.steps, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
