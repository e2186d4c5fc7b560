"""Seconds of collectives, against values worked out by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from autopar.base.errors import AnnotationError
from autopar.cost import Cluster, CommunicationModel, LinkLevel
from autopar.ir.mesh import ProcessMesh

FAST = LinkLevel("fast", 4, 1.0, 0.01)
SLOW = LinkLevel("slow", 8, 10.0, 0.1)
CLUSTER = Cluster("test", "", 1, 1000.0, (("f32", 1.0),), (FAST, SLOW))


def model(*sizes: int, order: tuple[str, ...] | None = None) -> CommunicationModel:
    names = ("x", "y", "z")[: len(sizes)]
    return CommunicationModel(CLUSTER, ProcessMesh.of_shape(sizes, names), order)


@pytest.mark.parametrize(
    ("sizes", "axes", "span"),
    [
        ((4,), ("x",), (4, 1)),
        ((8,), ("x",), (4, 2)),
        ((2, 4), ("x",), (1, 2)),
        ((2, 4), ("y",), (4, 1)),
        ((2, 4), ("x", "y"), (4, 2)),
        ((4, 2), ("x",), (2, 2)),
        ((2, 2, 2), ("x", "z"), (2, 2)),
        ((2, 2), ("x", "y"), (4, 1)),
        ((3,), ("x",), (3, 1)),
        ((2, 3), ("y",), (1, 3)),
    ],
)
def test_span(sizes: tuple[int, ...], axes: tuple[str, ...], span: tuple[int, ...]) -> None:
    assert model(*sizes).span(axes) == span


LEVELS = (2, 2, 3, 2)


@pytest.mark.parametrize("sizes", [(24,), (6, 4), (2, 12), (12, 2), (2, 3, 4), (2, 3, 2, 2)])
def test_members_are_counted_level_by_level(sizes: tuple[int, ...]) -> None:
    """Of four levels, as counting the groups of devices on each that a collective is among."""
    links = tuple(LinkLevel(f"l{at}", size, 1.0, 1.0) for at, size in enumerate(LEVELS))
    cluster = Cluster("deep", "", 1, 1.0, (("f32", 1.0),), links)
    names = tuple("wxyz"[: len(sizes)])
    mesh = ProcessMesh.of_shape(sizes, names)
    ids = np.arange(mesh.size).reshape(sizes)
    for count in range(1, len(names) + 1):
        for axes in combinations(names, count):
            at = tuple(slice(None) if name in axes else 0 for name in names)
            members, found = ids[at].ravel(), []
            for size in (*LEVELS[:-1], mesh.size):
                joined = {int(member) // size for member in members}
                found.append(len(members) // len(joined))
                members = np.array(sorted(joined))
            span = CommunicationModel(cluster, mesh).span(axes)
            assert span == tuple(found), (sizes, axes)


def test_order_of_axes_decides_which_links_they_use() -> None:
    assert model(2, 4, order=("y", "x")).span(("x",)) == (2, 1)
    assert model(2, 4, order=("y", "x")).span(("y",)) == (2, 2)


def test_a_sub_mesh_lies_where_its_parent_does() -> None:
    parent = ProcessMesh.of_shape((2, 4), ("x", "y"))
    assert CommunicationModel(CLUSTER, parent["y", 1]).span(("x",)) == (1, 2)
    assert CommunicationModel(CLUSTER, parent["x", 1]).span(("x", "y")) == (4, 2)


def test_ids_decide_which_devices_are_neighbours() -> None:
    mesh = ProcessMesh([[0, 4], [1, 5], [2, 6], [3, 7]], ("x", "y"))
    assert CommunicationModel(CLUSTER, mesh).span(("x",)) == (4, 1)
    assert CommunicationModel(CLUSTER, mesh).span(("y",)) == (1, 2)


def test_one_level() -> None:
    one = model(4)
    assert one.all_gather(400, ["x"]) == pytest.approx(2 * 1.0 + 300 * 0.01)
    assert one.reduce_scatter(400, ["x"]) == one.all_gather(400, ["x"])
    assert one.all_to_all(400, ["x"]) == pytest.approx(min(3 + 3.0, 2 * (1 + 2.0)))
    assert one.point_to_point(400, ["x"]) == pytest.approx(1 + 4.0)
    assert one.local_copy(500) == pytest.approx(1.0)


def test_small_tensors_take_the_tree_and_large_ones_the_ring() -> None:
    one = model(4)
    assert one.all_reduce(100, ["x"]) == pytest.approx(2 * (1 + 1.0))
    assert one.all_reduce(4000, ["x"]) == pytest.approx(2 * (2 * 1.0 + 3000 * 0.01) - 1.0)
    assert one.broadcast(100, ["x"]) == pytest.approx(2 * (1 + 1.0))
    assert one.broadcast(4000, ["x"]) == pytest.approx(2 * (2 * 1.0 + 3000 * 0.01))


@pytest.mark.parametrize("nbytes", [100, 4000, 400000])
@pytest.mark.parametrize(("first", "second"), [("x", "y"), ("y", "x")])
def test_reducing_over_two_axes_takes_no_longer_than_in_steps(
    nbytes: int, first: str, second: str
) -> None:
    """Scattering over one, reducing the pieces over the other, gathering."""
    one = model(4, 2)
    piece = nbytes / one.mesh.axis_size(first)
    steps = one.reduce_scatter(nbytes, [first]) + one.all_reduce(piece, [second])
    steps += one.all_gather(nbytes, [first])
    assert one.all_reduce(nbytes, ["x", "y"]) <= steps * (1 + 1e-12)


def test_around_a_ring_messages_go_from_neighbour_to_neighbour() -> None:
    link = LinkLevel("ring", 8, 1.0, 0.01, "ring")
    cluster = Cluster("torus", "", 1, 1000.0, (("f32", 1.0),), (link,))
    ring = CommunicationModel(cluster, ProcessMesh.of_shape((8,), ("x",)))
    assert ring.all_gather(800, ["x"]) == pytest.approx(7 + 7.0)
    assert ring.all_reduce(800, ["x"]) == pytest.approx(2 * (7 + 7.0))
    assert ring.all_to_all(800, ["x"]) == pytest.approx(7 * (1 + 200 * 0.01))
    assert ring.broadcast(800, ["x"]) == pytest.approx(7 + 8.0)


@pytest.mark.parametrize(
    ("kind", "nbytes", "names"),
    [
        ("all_reduce", 100, ["tree", "tree"]),
        ("all_reduce", 40000, ["halving and doubling", "tree"]),
        ("all_gather", 400, ["doubling", "doubling"]),
        ("all_to_all", 40, ["bruck", "direct"]),
        ("all_to_all", 4000, ["direct", "direct"]),
        ("broadcast", 4000, ["scatter and gather", "tree"]),
    ],
)
def test_the_cheapest_algorithm_of_each_level_is_named(
    kind: str, nbytes: int, names: list[str]
) -> None:
    both = model(8)
    found = both.algorithms(kind, nbytes, ["x"])
    assert [way.algorithm for way in found] == names
    assert [way.level for way in found] == ["fast", "slow"]
    assert sum(way.seconds for way in found) == getattr(both, kind)(nbytes, ["x"])


def test_two_levels_move_the_small_pieces_over_the_slow_links() -> None:
    both = model(8)
    outer = 10 + 100 * (1 / 2) * 0.1
    assert both.all_gather(400, ["x"]) == pytest.approx(2 + 300 * 0.01 + outer)
    inner = 2 * (2 * 1.0 + 3000 * 0.01) - 1.0
    assert both.all_reduce(4000, ["x"]) == pytest.approx(inner + 10 + 1000 * 0.1)
    assert both.point_to_point(400, ["x"]) == pytest.approx(10 + 40)


def test_nobody_else_nothing_to_do() -> None:
    alone = model(1, 4)
    for collective in (
        alone.all_gather,
        alone.reduce_scatter,
        alone.all_reduce,
        alone.all_to_all,
        alone.broadcast,
        alone.point_to_point,
    ):
        assert collective(1000, ["x"]) == 0


def test_thousands_of_ranks_are_priced_in_closed_form() -> None:
    cluster = Cluster.load("h100")
    mesh = ProcessMesh.of_shape((64, 64), ("x", "y"))
    both = CommunicationModel(cluster, mesh)
    assert both.span(("x", "y")) == (8, 32, 16)
    assert both.span(("x",)) == (1, 4, 16)
    assert both.all_reduce(1e9, ["y"]) < both.all_reduce(1e9, ["x"])


def test_too_many_processes() -> None:
    with pytest.raises(AnnotationError) as error:
        model(5, 8)
    assert "40 processes, but cluster 'test' has 32 devices" in str(error.value)


def test_order_must_name_every_axis() -> None:
    with pytest.raises(AnnotationError, match="not a permutation"):
        model(2, 4, order=("x", "x"))
