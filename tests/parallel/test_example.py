"""The example trains alike in one process and under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "parallelize.py"


def losses(*command: str) -> list[float]:
    """Returns the losses that a run of the example prints."""
    run = [sys.executable, *command, "--steps", "3"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600, check=True)
    return [float(line.split()[-1]) for line in done.stdout.splitlines()]


def test_the_example_prints_the_same_losses_alone_and_in_a_job() -> None:
    alone = losses(str(EXAMPLE))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    together = losses(*torchrun, str(EXAMPLE), "--mesh", "tp=2", "--strategy", "tensor:tp")
    assert len(alone) == 3
    assert all(abs(a - b) < 2e-5 for a, b in zip(alone, together, strict=True))
    assert alone[-1] < alone[0]
