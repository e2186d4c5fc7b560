"""Trains two encoders side by side, each on a half of the mesh, and compares the losses.

    python examples/two_towers.py

The model is written for one device. Two marks send the pixels to one slice of the mesh and the
words to another; what is computed from them runs there, and only the few numbers that both have in
common travel. The step is trained by four real processes (gloo, on the CPU), and its losses are
compared with those of plain PyTorch in one process.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar
from autopar import ProcessMesh, annotate

STEPS, BATCH, WIDTH, HIDDEN, SHARED = 10, 16, 48, 96, 16
TOLERANCE = 1e-5

MESH = ProcessMesh([[0, 1], [2, 3]], dim_names=["side", "dp"])

Batch = tuple[tuple[Tensor, Tensor], Tensor]


class Towers(nn.Module):
    """An encoder of pixels and one of words; the scores of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU()
        )
        self.text = nn.Sequential(nn.Embedding(100, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.project = nn.ModuleList(nn.Linear(HIDDEN, SHARED) for _ in range(2))

    def forward(self, pixels: Tensor, words: Tensor) -> Tensor:
        pixels = annotate.shard(pixels, MESH["side", 0], ["dp", None])
        words = annotate.shard(words, MESH["side", 1], ["dp", None])
        image: Tensor = self.project[0](self.image(pixels))
        text: Tensor = self.project[1](self.text(words).mean(1))
        return image @ text.t()


def batch(step: int) -> Batch:
    """Returns the global batch of a step: pixels and words that belong together."""
    generator = torch.Generator().manual_seed(step)
    pixels = torch.randn(BATCH, WIDTH, generator=generator)
    words = torch.randint(0, 100, (BATCH, 5), generator=generator)
    return (pixels, words), torch.arange(BATCH)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Returns the optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_plainly() -> list[float]:
    """Trains in this process, without autopar."""
    model = Towers()
    optimizer = adamw(model)
    losses = []
    for step in range(STEPS):
        inputs, target = batch(step)
        loss = nn.functional.cross_entropy(model(*inputs), target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def compiled() -> autopar.CompiledModule:
    """Compiles the training step; nothing but the marks says how it is split."""
    model = Towers()
    return autopar.compile(
        model,
        batch(0),
        mesh=MESH,
        loss=nn.functional.cross_entropy,
        optimizer=adamw(model),
        strategy=None,
    )


def train_in_processes(build: Path) -> list[float]:
    """Starts a process per rank; rank 0 writes the losses."""
    losses = build.with_suffix(".json")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={MESH.size}"]
    rank = [__file__, "--build", str(build), "--losses", str(losses)]
    subprocess.run([sys.executable, *torchrun, *rank], check=True)
    found: list[float] = json.loads(losses.read_text())
    return found


def train_rank(build: Path, losses: Path) -> None:
    """What each process does: the loop of the user's own script."""
    with autopar.load(build, backend="gloo") as trainer:
        found = [trainer.step(batch(step)).item() for step in range(STEPS)]
        if dist.get_rank() == 0:
            losses.write_text(json.dumps(found))


def compare() -> int:
    """Trains in both ways; returns 1 if the losses differ."""
    expected = train_plainly()
    step = compiled()
    print(step.summary().partition("\n\nreplicated")[0], end="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build"
        step.save(build)
        losses = train_in_processes(build)
    pairs = zip(losses, expected, strict=True)
    same = all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs)
    print(f"one process     loss {expected[0]:.6f} -> {expected[-1]:.6f}")
    print(f"four processes  loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    print("equal" if same else "DIFFERENT")
    return int(not same)


def main() -> int:
    """Compares, or is one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, help="be one rank of this build")
    parser.add_argument("--losses", type=Path, help="where rank 0 writes its losses")
    options = parser.parse_args()
    if options.build is None:
        return compare()
    train_rank(options.build, options.losses)
    return 0


if __name__ == "__main__":
    sys.exit(main())
