"""The example of a pipeline trains as one process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_example_compares_equal() -> None:
    example = Path(__file__).parents[2] / "examples/train_pipeline.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stage 1 from " in done.stdout
    assert done.stdout.endswith("equal\n")
