"""Whatever was chosen and is left open, all ranks compute what one device does at any size."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from autopar.cost import Cluster
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.program import Program
from autopar.ir.used_sizes import used_sizes
from autopar.ir.verify import verify_structure
from autopar.mapping.deploy import deploy
from autopar.partition import Partition
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.ports.open_inputs import deployment_at
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.partition.programs import random_program
from tests.partition.test_random_programs import arrays

CLUSTER = Cluster.load("cpu")
SIZES = (0, 1, 2, 5, 7, 12)
TRIES = 4

SEEDS = [*range(36), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(36, 300))]


def some_sizes(program: Program, seed: int) -> list[dict[str, int]]:
    """Draws sizes, the smallest ones first."""
    rng = random.Random(seed)
    sizes = used_sizes(program)
    least = {size.name: size.least for size in sizes}
    drawn = [{s.name: max(rng.choice(SIZES), s.least) for s in sizes} for _ in range(TRIES)]
    return [least, dict.fromkeys(least, 1), *drawn]


def assert_same(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], what: object
) -> None:
    for name, expected in wanted.items():
        assert found[name].shape == expected.shape, (what, name)
        scale = max([1.0, *expected.abs().flatten().tolist()])
        assert torch.allclose(found[name], expected, rtol=0, atol=1e-4 * scale), (what, name)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_ranks_together_compute_what_one_device_does(seed: int, tmp_path: Path) -> None:
    program = random_program(seed, left_open=True)
    partitioned = Partition(CLUSTER)(program)
    verify_structure(partitioned)
    deployment = deploy(partitioned, CLUSTER)
    weights: dict[str, torch.Tensor] = {}
    for sizes in some_sizes(program, seed):
        serial = at_sizes(program, sizes)
        given = arrays(serial, seed)
        drawn = {name: given.pop(name) for name in ("w", "table")}
        if not weights:
            weights = drawn
            write_weights(tmp_path / "weights", weights)
        wanted = run_serial(serial, weights, given)
        with WeightFile(tmp_path / "weights") as file:
            found = VirtualMesh(deployment_at(deployment, sizes), file).run(given)
        assert_same(found, wanted, sizes)
