"""Whatever is pinned, and whatever is left open, all ranks compute what one device does.

Random programs go all the way that those of users go: pins and a preset are completed, and
lowered, for the sizes that are planned. They run at others.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.completion import Complete
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.ir.verify import verify_distribution, verify_structure
from autopar.mapping.deploy import deploy
from autopar.planning.lowering import Lowering
from tests.completion.test_laws import pinned
from tests.partition.open_runs import check_at_sizes
from tests.partition.programs import random_program

CLUSTER = Cluster.load("cpu")
MESHES = tuple(
    ProcessMesh.of_shape(shape, ("a", "b")[: len(shape)])
    for shape in ((2,), (3,), (2, 2), (3, 2), (2, 4))
)
STRATEGIES = (None, None, "data", "fsdp", "auto")

SEEDS = [*range(30), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 300))]


def serial_program(seed: int) -> Program:
    """Returns a random program on which nothing is decided."""
    program = random_program(seed, left_open=True)
    main = program.main
    values = {name: replace(value, dist=None, origin=None) for name, value in main.values.items()}
    ops = tuple(replace(op, dist=None, origin=None) for op in main.ops)
    return replace(program.with_main(replace(main, values=values, ops=ops)), mesh=None)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_pins_at_any_sizes(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    mesh, strategy = chance.choice(MESHES), chance.choice(STRATEGIES)
    serial = serial_program(seed)
    wanted = pinned(serial, mesh, seed, chance.randrange(5))
    completed = Complete(CLUSTER, strategy)(wanted)
    verify_distribution(completed, wanted)
    lowered = Lowering(CLUSTER, ReshardPlanner(CommunicationModel(CLUSTER, mesh)))(completed)
    verify_structure(lowered.ranks)
    check_at_sizes(serial, deploy(lowered.ranks, CLUSTER), seed, tmp_path)
