"""Planned reshards are right, and as fast as the fastest that brute force finds.

Every pair of layouts: all dims_mappings, also of several axes in both orders, and all pending
reductions of one kind, on meshes of one to three axes, for tensors without, with one, two and
three dimensions, that divide evenly, unevenly, and into less elements than there are processes.
The fast tests take a sample of the pairs of small tensors; `make test-reshards` takes all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from autopar.cost import Cluster, CommunicationModel, LinkLevel, Move, Reshard, ReshardPlanner
from autopar.ir.dims import dim_axes, whole
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from tests.cost.levels import two_levels
from tests.cost.reshard.exhaustive import Exhaustive
from tests.partition.simulate import check, layouts, run, scatter

Shape = tuple[int, ...]

BANDWIDTH = Cluster("bandwidth", "", 1, 1e30, (("f32", 1.0),), (LinkLevel("link", 64, 0.0, 1.0),))
LEVELS = two_levels(2)

CLUSTERS = {
    "latency": (Cluster.load("h100"), 1),
    "bandwidth": (BANDWIDTH, 1),
    "balance": (Cluster.load("cpu"), 1 << 18),
    "levels": (LEVELS, 4),
}
"""Clusters with the bytes per element, so that latency, bandwidth, or both decide."""

SIZES: dict[tuple[int, ...], tuple[int, int, int]] = {
    (2,): (4, 3, 1),
    (3,): (6, 4, 2),
    (2, 2): (8, 7, 3),
    (2, 3): (12, 7, 5),
    (2, 2, 2): (8, 9, 3),
}
"""Per mesh, sizes that divide over all processes, that don't, and that are less than they."""


def shapes(sizes: tuple[int, ...]) -> list[Shape]:
    even, uneven, few = SIZES[sizes]
    return [
        (),
        (even,),
        (uneven,),
        (few,),
        (even, even),
        (even, uneven),
        (uneven, few),
        (even, even, uneven),
        (even, uneven, few),
    ]


def mesh_name(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def mesh_of(sizes: tuple[int, ...]) -> ProcessMesh:
    return ProcessMesh.of_shape(sizes, ("x", "y", "z")[: len(sizes)])


def sweep(mesh: ProcessMesh, shape: Shape, cluster: str, sources: int | None, runs: int) -> int:
    """Judges all reshards from (at most so many) sources, and carries some of them out."""
    picker = random.Random(11)
    described, itemsize = CLUSTERS[cluster]
    model = CommunicationModel(described, mesh)
    planner = ReshardPlanner(model)
    monoids = ("sum", "max") if len(shape) < 2 else ("sum",)
    judge = Exhaustive(mesh, shape, monoids)
    found = layouts(mesh, shape, monoids)
    chosen = found if sources is None else picker.sample(found, min(sources, len(found)))
    planned: list[tuple[Layout, Layout, Reshard]] = []
    for source in chosen:
        fastest = judge.seconds_from(source, itemsize, model)
        for target in found:
            reshard = planner.plan(source, target, itemsize)
            best = fastest[judge.node(target)]
            assert reshard.seconds == pytest.approx(best, rel=1e-6), (str(source), str(target))
            planned.append((source, target, reshard))
            if described is BANDWIDTH:
                no_more_than_gather_then_slice(source, target, reshard)
    for source, target, reshard in picker.sample(planned, min(runs, len(planned))):
        carry_out(source, target, reshard)
    return len(planned)


def carry_out(source: Layout, target: Layout, reshard: Reshard) -> None:
    rng = np.random.default_rng(5)
    array = rng.integers(1, 100, size=source.shape)
    check(array, target, run(source, reshard, scatter(array, source, rng)))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("sizes", SIZES, ids=mesh_name)
def test_sampled_reshards_are_right_and_the_fastest(sizes: tuple[int, ...], cluster: str) -> None:
    mesh = mesh_of(sizes)
    small = [shape for shape in shapes(sizes) if len(shape) <= (1 if len(sizes) > 2 else 2)]
    for shape in small:
        assert sweep(mesh, shape, cluster, sources=2, runs=12)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("shape", range(9))
@pytest.mark.parametrize("sizes", SIZES, ids=mesh_name)
def test_all_reshards_are_right_and_the_fastest(
    sizes: tuple[int, ...], shape: int, cluster: str
) -> None:
    runs = 2000 if cluster == "bandwidth" else 200
    assert sweep(mesh_of(sizes), shapes(sizes)[shape], cluster, sources=None, runs=runs)


def sent(source: Layout, moves: Sequence[Move]) -> float:
    """Bytes that the busiest device sends in these moves, at one byte per element."""
    model = CommunicationModel(BANDWIDTH, source.mesh)
    total, before = 0.0, elements(source)
    for move in moves:
        count, after = source.mesh.axes_size(move.axes), elements(move.layout)
        if move.kind == "all_gather":
            total += model.all_gather(before * count, move.axes)
        elif move.kind == "all_to_all":
            total += model.all_to_all(max(before, after), move.axes)
        elif move.kind == "all_reduce":
            total += model.all_reduce(before, move.axes)
        elif move.kind == "reduce_scatter":
            total += model.reduce_scatter(after * count, move.axes)
        elif move.kind in ("permute", "redistribute"):
            total += after
        before = after
    return total


def elements(layout: Layout) -> int:
    count = 1
    for dim in layout.dims:
        for sub in dim:
            count *= -(-sub.size // layout.mesh.axes_size(sub.axes))
    return count


def gather_then_slice(source: Layout, target: Layout) -> Iterator[Move]:
    """Reduces what is pending otherwise, gathers every dimension that differs, and slices."""
    layout = source
    if source.partial and source.partial != target.partial:
        layout = source.without_partial()
        yield Move("all_reduce", source.partial_axes, layout)
    for at, dim in enumerate(source.dims):
        if (axes := dim_axes(dim)) and dim != target.dims[at]:
            dims = (*layout.dims[:at], whole(source.shape[at]), *layout.dims[at + 1 :])
            layout = Layout(source.mesh, dims, layout.partial)
            yield Move("all_gather", axes, layout)


def no_more_than_gather_then_slice(source: Layout, target: Layout, reshard: Reshard) -> None:
    most = sent(source, list(gather_then_slice(source, target)))
    assert sent(source, reshard.moves) <= most * (1 + 1e-9), (str(source), str(target))


@pytest.mark.parametrize("sizes", SIZES, ids=mesh_name)
def test_never_sends_more_than_gather_then_slice(sizes: tuple[int, ...]) -> None:
    mesh = mesh_of(sizes)
    picker = random.Random(3)
    planner = ReshardPlanner(CommunicationModel(BANDWIDTH, mesh))
    for shape in shapes(sizes):
        found = layouts(mesh, shape, ("sum",))
        for _ in range(40):
            source, target = picker.choice(found), picker.choice(found)
            reshard = planner.plan(source, target, 1)
            no_more_than_gather_then_slice(source, target, reshard)
