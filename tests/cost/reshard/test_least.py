"""The least seconds of all reshards at once are those of each by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.ir.expr.expression import Size
from autopar.ir.mesh import ProcessMesh
from tests.cost.levels import two_levels
from tests.partition.simulate import layouts

LEVELS = two_levels(2)


@pytest.mark.parametrize("cluster", [Cluster.load("h100"), LEVELS], ids=["one-level", "two-levels"])
@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 2), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize("shape", [(8, 12), (7, 6), (8, 1, 9)])
def test_all_pairs_at_once(
    sizes: tuple[int, ...], shape: tuple[int, ...], cluster: Cluster
) -> None:
    mesh = ProcessMesh.of_shape(sizes)
    planner = ReshardPlanner(CommunicationModel(cluster, mesh))
    found = layouts(mesh, shape, ("sum", "max") if len(sizes) < 3 else ("sum",))
    chance = random.Random(7)
    sources, targets = (chance.sample(found, min(40, len(found))) for _ in range(2))
    each = [[planner.least_seconds(one, other, 4) for other in targets] for one in sources]
    np.testing.assert_allclose(planner.least_seconds_between(sources, targets, 4), each, rtol=1e-12)
    assert np.any(np.array(each) > 0) or mesh.size == 1


@pytest.mark.parametrize("sizes", [(2, 3), (2, 2, 2)])
def test_a_short_look_finds_no_more_than_there_is(sizes: tuple[int, ...]) -> None:
    """And no less than is known without."""
    mesh = ProcessMesh.of_shape(sizes)
    looking, planning = (ReshardPlanner(CommunicationModel(LEVELS, mesh)) for _ in range(2))
    found = layouts(mesh, (8, 9), ("sum",))
    chance = random.Random(3)
    raised = 0
    for one, other in ((chance.choice(found), chance.choice(found)) for _ in range(60)):
        least = [looking.least_seconds_found(one, other, 4, states) for states in (1, 4, 10_000)]
        exact = planning.plan(one, other, 4).seconds
        assert least[-1] == pytest.approx(exact, rel=1e-6)
        assert all(each <= exact * (1 + 1e-9) for each in least)
        known = looking.least_seconds(one, other, 4)
        assert all(each >= known * (1 - 1e-6) for each in least)
        raised += least[1] > known * 1.01
    assert raised


def test_without_elements_nothing_takes_time() -> None:
    mesh = ProcessMesh.of_shape((2,))
    planner = ReshardPlanner(CommunicationModel(LEVELS, mesh))
    found = layouts(mesh, (0, 4), ("sum",))
    assert not planner.least_seconds_between(found, found, 4).any()


def test_a_size_planned_for_nothing_is_bounded_too() -> None:
    mesh = ProcessMesh.of_shape((2, 2))
    planner = ReshardPlanner(CommunicationModel(LEVELS, mesh))
    found = layouts(mesh, (Size("batch", planned=0), 4), ("sum",))
    least = planner.least_seconds_between(found, found, 4)
    exact = [[planner.plan(one, other, 4).seconds for other in found] for one in found]
    assert np.all(least <= np.array(exact) * (1 + 1e-9))
