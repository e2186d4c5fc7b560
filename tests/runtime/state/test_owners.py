"""Who writes a piece: exactly one of the ranks that hold it, and none much more than others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autopar.ir.builds.files import read_build
from autopar.ir.deployment import Deployment
from autopar.runtime.ports.boxes import Box, box_shape, is_empty
from autopar.runtime.ports.ports import is_weight, port_box
from autopar.runtime.state.owners import pieces_written
from tests.runtime.training.steps import LAYOUTS, Layout, training_build


def held(deployment: Deployment, rank: int, at: int) -> Box:
    port = deployment.program_of(rank).signature.inputs[at]
    return port_box(port, deployment.coords_of(rank))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_piece_is_written_once(tmp_path: Path, layout: Layout) -> None:
    deployment = read_build(training_build(tmp_path / "b", layout)).deployment
    ports = deployment.programs[0].signature.inputs
    inputs = [at for at, port in enumerate(ports) if is_weight(port)]
    ranks = range(deployment.world_size)
    written = pieces_written(deployment, inputs, ranks)
    assert written == set().union(*(pieces_written(deployment, inputs, [rank]) for rank in ranks))
    for at in inputs:
        wanted = {box for rank in ranks if not is_empty(box := held(deployment, rank, at))}
        found = Counter(held(deployment, rank, at) for rank in ranks if (rank, at) in written)
        assert found == dict.fromkeys(wanted, 1)


def test_no_rank_writes_much_more_than_others(tmp_path: Path) -> None:
    deployment = read_build(training_build(tmp_path / "b", LAYOUTS[1])).deployment
    ports = deployment.programs[0].signature.inputs
    inputs = [at for at, port in enumerate(ports) if is_weight(port)]
    elements = {0: 0, 1: 0}
    for rank, at in pieces_written(deployment, inputs, (0, 1)):
        count = 1
        for size in box_shape(held(deployment, rank, at)):
            count *= size
        elements[rank] += count
    assert max(elements.values()) <= 1.2 * min(elements.values())
