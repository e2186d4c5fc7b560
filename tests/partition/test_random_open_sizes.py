"""Whatever was chosen and is left open, all ranks compute what one device does at any size."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.cost import Cluster
from autopar.ir.verify import verify_structure
from autopar.mapping.deploy import deploy
from autopar.partition import Partition
from tests.partition.open_runs import check_at_sizes
from tests.partition.programs import random_program

CLUSTER = Cluster.load("cpu")

SEEDS = [*range(18), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(18, 300))]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_ranks_together_compute_what_one_device_does(seed: int, tmp_path: Path) -> None:
    program = random_program(seed, left_open=True)
    partitioned = Partition(CLUSTER)(program)
    verify_structure(partitioned)
    check_at_sizes(program, deploy(partitioned, CLUSTER), seed, tmp_path)
