"""Whatever was chosen, all ranks together compute what one device does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.ir.text import print_program
from autopar.ir.verify import verify_structure
from autopar.mapping.deploy import deploy
from autopar.partition import Partition
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.partition.programs import random_program

CLUSTER = Cluster.load("cpu")


def arrays(program: Program, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        port.name: torch.randint(0, 7, port.shape)
        if port.dtype == "i64"
        else torch.randn(port.shape)
        for port in program.signature.inputs
    }


@pytest.mark.parametrize("seed", range(24))
def test_all_ranks_together_compute_what_one_device_does(seed: int, tmp_path: Path) -> None:
    program = random_program(seed)
    given = arrays(program, seed)
    weights = {name: given.pop(name) for name in ("w", "table")}
    partitioned = Partition(CLUSTER)(program)
    verify_structure(partitioned)
    write_weights(tmp_path / "weights", weights)
    with WeightFile(tmp_path / "weights") as file:
        found = VirtualMesh(deploy(partitioned, CLUSTER), file).run(given)
    for name, expected in run_serial(program, weights, given).items():
        scale = max(1.0, float(expected.abs().max()))
        assert torch.allclose(found[name], expected, rtol=0, atol=1e-4 * scale), name


def test_the_same_program_gives_the_same_text() -> None:
    first, second = (Partition(CLUSTER)(random_program(5)) for _ in range(2))
    assert print_program(first) == print_program(second)
