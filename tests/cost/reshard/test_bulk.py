"""Reshards between all layouts at once are priced as those that are carried out."""

from __future__ import annotations

import pytest

from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.cost.reshard.bulk import BulkPlanner
from autopar.ir.mesh import ProcessMesh
from tests.cost.levels import two_levels
from tests.partition.simulate import layouts

LEVELS = two_levels(2)


@pytest.mark.parametrize("cluster", [Cluster.load("cpu"), LEVELS], ids=["one-level", "two-levels"])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("shape", [(8, 12), (7, 6), (8, 1, 9)])
def test_blocks_are_padded_where_they_do_not_divide(
    size: int, shape: tuple[int, ...], cluster: Cluster
) -> None:
    """As many rows as the largest block has come from each process, or are sent to it."""
    model = CommunicationModel(cluster, ProcessMesh.of_shape((size,)))
    found = [each for each in layouts(model.mesh, shape, ("sum",)) if not each.partial]
    planner = ReshardPlanner(model)
    bulk = BulkPlanner(model).reshard_seconds(found, 4)
    for one, row in zip(found, bulk, strict=True):
        for other, seconds in zip(found, row, strict=True):
            assert seconds >= planner.plan(one, other, 4).seconds * (1 - 1e-9)
        whole = next(i for i, each in enumerate(found) if not each.sharded_axes)
        assert row[whole] == pytest.approx(planner.plan(one, found[whole], 4).seconds)
