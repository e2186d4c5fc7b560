"""Every reshard, carried out on all ranks' pieces, gives the pieces of the target layout."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.ir.dims import SubDim
from autopar.ir.expr.expression import Size
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.partition.lower_reshard import lower_reshard
from tests.partition.simulate import check, layouts, piece, run, scatter, with_sub_dims

MESHES = (
    ProcessMesh.of_shape((2,), ("x",)),
    ProcessMesh.of_shape((3,), ("x",)),
    ProcessMesh.of_shape((2, 2), ("x", "y")),
    ProcessMesh.of_shape((2, 3), ("x", "y")),
)
SHAPES = ((), (4,), (7,), (4, 6), (5, 7), (2, 1), (8, 12, 6), (3, 5, 2), (0, 3))
SUB_DIMS = (
    (6, ((1, 6), (6, 1), (2, 1, 3), (1, 2, 3), (2, 3))),
    (5, ((1, 5), (5, 1), (1, 5, 1))),
    (12, ((3, 4), (4, 3), (2, 2, 3), (2, 6))),
    (15, ((5, 3), (3, 5))),
)
SINGLE = (
    (((1, 6), (3,)), ((2, 1, 3), (3,)), ((6,), (1, 3))),
    (((1, 4), (1,)), ((2, 1, 2), (1, 1))),
)
"""Forms of tensors of two dimensions in which sub-dimensions of one element may be split."""
MONOIDS = ("sum", "max", "min", "prod")


def cases(mesh: ProcessMesh) -> Iterator[list[tuple[Layout, Layout]]]:
    """All pairs of layouts of a tensor, for every shape."""
    for shape in SHAPES:
        for monoids in (MONOIDS[:2], MONOIDS[2:]):
            yield pairs(layouts(mesh, shape, monoids))
    for size, forms in SUB_DIMS:
        split = [layout for form in forms for layout in with_sub_dims(mesh, form)]
        yield pairs([*layouts(mesh, (size,), ("sum",)), *split])
    for forms in SINGLE:
        yield pairs([layout for form in forms for layout in with_sub_dims(mesh, *form)])


def pairs(found: Sequence[Layout]) -> list[tuple[Layout, Layout]]:
    return list(itertools.product(dict.fromkeys(found), repeat=2))


def sweep(mesh: ProcessMesh, limit: int | None) -> int:
    """Reshards between pairs of layouts, at most `limit` (seeded) per shape; returns how many."""
    picker = random.Random(7)
    rng = np.random.default_rng(7)
    planner = ReshardPlanner(CommunicationModel(Cluster.load("cpu"), mesh))
    count = 0
    for case in cases(mesh):
        chosen = case if limit is None or len(case) <= limit else picker.sample(case, limit)
        for source, target in chosen:
            product = any(monoid == "prod" for _, monoid in (*source.partial, *target.partial))
            whole = rng.integers(1, 3 if product else 100, size=source.shape)
            pieces = scatter(whole, source, rng)
            check(whole, target, run(source, planner.plan(source, target, 8), pieces))
            count += 1
    return count


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_sampled_reshards_give_the_target_pieces(mesh: ProcessMesh) -> None:
    assert sweep(mesh, limit=60) > 100


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_all_reshards_give_the_target_pieces(mesh: ProcessMesh) -> None:
    assert sweep(mesh, limit=None) > 300


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_layouts_are_equal_iff_all_ranks_hold_the_same(mesh: ProcessMesh) -> None:
    for size, forms in (*SUB_DIMS, (24, ((4, 6), (2, 12), (8, 3), (12, 2)))):
        whole = np.arange(size)
        by_pieces: dict[tuple[tuple[int, ...], ...], Layout] = {}
        for layout in (one for form in forms for one in with_sub_dims(mesh, form)):
            if any(
                sub.size % mesh.axes_size(sub.axes) and len(sub.axes) > 1 for sub in layout.dims[0]
            ):
                continue
            held = tuple(
                tuple(piece(whole, layout, mesh.coordinates(rank)).tolist())
                for rank in range(mesh.size)
            )
            assert by_pieces.setdefault(held, layout) == layout


def test_a_move_of_a_whole_dimension_needs_no_view() -> None:
    mesh = MESHES[3]
    planner = ReshardPlanner(CommunicationModel(Cluster.load("cpu"), mesh))
    source = Layout.from_dims_mapping(mesh, (12, 6), ["x", "y"])
    for mapping in (["x", -1], [-1, "y"], [-1, -1], [("x", "y"), -1]):
        target = Layout.from_dims_mapping(mesh, (12, 6), mapping)
        steps = lower_reshard(source, planner.plan(source, target, 4))
        assert all(step.kind != "aten.view.default" for step in steps)


def test_a_sub_dimension_is_exposed_by_a_view_and_merged_again() -> None:
    mesh = MESHES[2]
    planner = ReshardPlanner(CommunicationModel(Cluster.load("cpu"), mesh))
    source = Layout.from_dims_mapping(mesh, (8,), [("x", "y")])
    target = next(t for t in with_sub_dims(mesh, (2, 4)) if str(t) == "[(2)(4@y)]")
    steps = lower_reshard(source, planner.plan(source, target, 4))
    assert [(step.kind, dict(step.args)) for step in steps] == [
        ("aten.view.default", {"size": (1, 2)}),
        ("comm.all_gather", {"dim": 0, "size": 2, "axes": ("x",)}),
        ("aten.view.default", {"size": (4,)}),
    ]


@pytest.mark.parametrize("planned", [0, 1, 8])
@pytest.mark.parametrize("minor", [Size("length"), 12])
def test_the_order_of_sub_dimensions_is_the_same_whatever_is_planned(
    planned: int, minor: Size | int
) -> None:
    mesh = MESHES[0]
    planner = ReshardPlanner(CommunicationModel(Cluster.load("cpu"), mesh))
    batch = Size("batch", planned=planned)
    length = minor if isinstance(minor, int) else replace(minor, planned=planned)
    outer = Layout(mesh, ((SubDim(batch, ("x",)), SubDim(length)),))
    inner = Layout(mesh, ((SubDim(batch), SubDim(length, ("x",))),))
    for source, target in ((outer, inner), (inner, outer)):
        steps = lower_reshard(source, planner.plan(source, target, 4))
        assert [step.kind for step in steps] == [
            "aten.view.default",
            "comm.all_to_all",
            "aten.view.default",
        ]
