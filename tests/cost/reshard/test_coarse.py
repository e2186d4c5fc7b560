"""Neighbouring axes that do the same are planned as one, and what comes out is still right."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from autopar.cost import CommunicationModel, ReshardPlanner
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from tests.cost.levels import two_levels
from tests.partition.simulate import check, run, scatter

LEVELS = two_levels(4)
MESH = ProcessMesh.of_shape((2, 2, 2, 2, 2))
COARSE = ProcessMesh.of_shape((2, 16), ("d0", "d1"))


def sample(shape: tuple[int, ...], count: int) -> list[Layout]:
    """Layouts in which runs of axes split a dimension, wait for a sum, or are idle."""
    chance = random.Random(3)
    found = []
    for _ in range(count):
        mapping: list[tuple[str, ...]] = [() for _ in shape]
        pending = {}
        first, second = sorted(chance.choices(range(len(MESH.dim_names) + 1), k=2))
        names = MESH.dim_names
        for axes in (names[:first], names[first:second], names[second:]):
            where = chance.randrange(-2, len(shape))
            if where >= 0 and not mapping[where]:
                mapping[where] = axes
            elif where == -2:
                pending.update(dict.fromkeys(axes, "sum"))
        layout = Layout.from_dims_mapping(MESH, shape, mapping)
        found.append(layout.with_partial(pending))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("shape", [(64, 32), (7, 12)])
def test_plans_give_the_target_pieces_and_take_no_less_than_the_bound(
    shape: tuple[int, ...],
) -> None:
    planner = ReshardPlanner(CommunicationModel(LEVELS, MESH))
    found = sample(shape, 9)
    least = planner.least_seconds_between(found, found, 4)
    rng = np.random.default_rng(5)
    whole = rng.integers(1, 100, size=shape)
    for (row, source), (column, target) in product(enumerate(found), repeat=2):
        assert least[row, column] == pytest.approx(planner.least_seconds(source, target, 4))
        reshard = planner.plan(source, target, 4)
        assert least[row, column] <= reshard.seconds * (1 + 1e-9)
        if (row + column) % 3 == 0:
            check(whole, target, run(source, reshard, scatter(whole, source, rng)))


def test_axes_that_stay_together_are_planned_as_one() -> None:
    fine, coarse = (ReshardPlanner(CommunicationModel(LEVELS, mesh)) for mesh in (MESH, COARSE))
    rest = MESH.dim_names[1:]
    places = [["d0", rest], [rest, "d0"], [("d0", *rest), ()], [(), ("d0", *rest)], [(), "d0"]]
    for one, other in product(places, repeat=2):
        layouts = [Layout.from_dims_mapping(MESH, (64, 48), each) for each in (one, other)]
        joined = [
            Layout.from_dims_mapping(
                COARSE, (64, 48), [tuple(a for a in entry if a in "d0 d1") for entry in each]
            )
            for each in ([(e,) if isinstance(e, str) else e for e in way] for way in (one, other))
        ]
        seconds = fine.plan(layouts[0], layouts[1], 4).seconds
        assert seconds == pytest.approx(coarse.plan(joined[0], joined[1], 4).seconds)
