"""Starts ranks as users do, by torch's launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]


def start_torchrun(
    *words: object, log: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts torch's launcher with these words; what it and the ranks print is added to a file."""
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, words)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **(variables or {}),
    }
    with log.open("ab") as file:
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )
