"""Reshard plans: which moves, what they cost, and that none is better."""

from __future__ import annotations

import numpy as np
import pytest

from autopar.base.errors import VerificationError
from autopar.cost import Cluster, CommunicationModel, LinkLevel, Move, Reshard, ReshardPlanner
from autopar.cost.reshard.moves import LayoutGraph, State, Step
from autopar.cost.reshard.planner import plan_reshard
from autopar.ir.dims_mapping import DimMapping
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from tests.partition.simulate import check, run, scatter

MESH = ProcessMesh.of_shape((2, 4), ("x", "y"))
H100 = Cluster.load("h100")
BANDWIDTH = Cluster("bandwidth", "", 1, 1e30, (("f32", 1.0),), (LinkLevel("link", 4096, 0.0, 1.0),))
"""Seconds are the bytes that a device sends."""


def lay(
    shape: tuple[int, ...], mapping: list[DimMapping], mesh: ProcessMesh = MESH, **pending: str
) -> Layout:
    return Layout.from_dims_mapping(mesh, shape, mapping).with_partial(pending)


def plan(source: Layout, target: Layout, itemsize: int = 4, cluster: Cluster = H100) -> Reshard:
    return plan_reshard(source, target, itemsize, CommunicationModel(cluster, source.mesh))


def moves(reshard: Reshard) -> list[str]:
    return [f"{move.kind} {','.join(move.axes)}" for move in reshard.moves]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (lay((64, 64), ["x", -1]), lay((64, 64), [-1, -1]), ["all_gather x"]),
        (lay((64, 64), [-1, -1]), lay((64, 64), ["x", "y"]), ["slice x", "slice y"]),
        (lay((64, 64), ["x", -1]), lay((64, 64), [-1, "x"]), ["all_to_all x"]),
        (lay((64, 64), [-1, -1], y="sum"), lay((64, 64), [-1, -1]), ["all_reduce y"]),
        (lay((64, 64), [-1, -1], y="max"), lay((64, 64), ["y", -1]), ["reduce_scatter y"]),
        (lay((64, 64), [-1, -1]), lay((64, 64), [-1, -1], y="min"), ["to_partial y"]),
        (lay((64, 64), [-1, -1], x="sum", y="sum"), lay((64, 64), [-1, -1]), ["all_reduce x,y"]),
        (lay((64, 64), [("x", "y"), -1]), lay((64, 64), [-1, -1]), ["all_gather x,y"]),
        (lay((64, 64), [("x", "y"), -1]), lay((64, 64), [-1, ("x", "y")]), ["all_to_all x,y"]),
        (lay((64, 64), [("x", "y"), -1]), lay((64, 64), ["x", -1]), ["all_gather y"]),
        (lay((64, 64), [-1, -1], x="sum"), lay((64, 64), [-1, -1], y="max"), None),
    ],
    ids=str,
)
def test_plan(source: Layout, target: Layout, expected: list[str] | None) -> None:
    assert sorted(moves(plan(source, target))) == sorted(
        expected if expected is not None else ["all_reduce x", "to_partial y"]
    )


def test_slices_come_before_communication() -> None:
    source, target = lay((64, 64), ["x", -1]), lay((64, 64), [-1, "y"])
    assert moves(plan(source, target)) == ["slice y", "all_gather x"]


def test_identity_is_free() -> None:
    layout = lay((64, 64), ["x", -1], y="sum")
    assert plan(layout, layout) == Reshard((), 0.0, 0)
    assert plan(layout, lay((64, 64), ["x", -1], y="sum")).moves == ()


def test_two_all_to_alls_where_others_gather_everything() -> None:
    # openxla/xla#15207: 24,576 bytes in XLA, 4,096 with one all_to_all per axis.
    mesh = ProcessMesh.of_shape((4, 2), ("x", "y"))
    source = lay((16, 16, 16), ["y", -1, "x"], mesh)
    target = lay((16, 16, 16), [-1, ("x", "y"), -1], mesh)
    for cluster in (H100, Cluster.load("cpu")):
        reshard = plan(source, target, 4, cluster)
        assert sorted(moves(reshard)) == ["all_to_all x", "all_to_all y"]
        assert reshard.bytes == 4096


def test_a_change_of_axis_is_no_local_slice() -> None:
    # Paddle slices S1(x) -> S1(y) on 2 x 4 locally and so mixes the pieces up.
    source, target = lay((8, 16), [-1, "x"]), lay((8, 16), [-1, "y"])
    reshard = plan(source, target)
    assert "x" in {axis for move in reshard.moves if move.bytes for axis in move.axes}
    carry_out(source, target, reshard)


@pytest.mark.parametrize("size", [8, 24, 64, 7])
def test_exchanged_axes(size: int) -> None:
    # Paddle's S0S1 -> S1S0 names a group that leaves out the rank itself.
    source, target = lay((size, 3), [("x", "y"), -1]), lay((size, 3), [("y", "x"), -1])
    carry_out(source, target, plan(source, target))


def test_exchanged_axes_need_no_full_gather() -> None:
    source, target = lay((64, 64), [("x", "y"), -1]), lay((64, 64), [("y", "x"), -1])
    reshard = plan(source, target, 1 << 20)
    largest = max(move.bytes for move in reshard.moves)
    assert largest < 64 * 64 << 20
    carry_out(source, target, reshard)


def carry_out(source: Layout, target: Layout, reshard: Reshard) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 100, size=source.shape)
    check(array, target, run(source, reshard, scatter(array, source, rng)))


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "reduce_scatter", "all_reduce"])
def test_bytes_are_those_of_the_result_of_the_largest_rank(kind: str) -> None:
    sources = {
        "all_gather": (lay((5, 8), ["y", -1]), lay((5, 8), [-1, -1]), 5 * 8),
        "all_to_all": (lay((5, 8), ["y", -1]), lay((5, 8), [-1, "y"]), 5 * 2),
        "reduce_scatter": (lay((5, 8), [-1, -1], y="sum"), lay((5, 8), ["y", -1]), 2 * 8),
        "all_reduce": (lay((5, 8), ["x", -1], y="sum"), lay((5, 8), ["x", -1]), 3 * 8),
    }
    source, target, elements = sources[kind]
    reshard = plan(source, target, itemsize=2)
    assert [move.kind for move in reshard.moves] == [kind]
    assert reshard.bytes == 2 * elements


def test_uneven_blocks_are_only_gathered_where_they_nest() -> None:
    # 7 over (x=2, y=4) is cut in ones; over x alone in 4 + 3, which y cuts in 1 + 1 + 1 + 1.
    nested = plan(lay((7,), [("x", "y")]), lay((7,), ["x"]))
    assert moves(nested) == ["all_gather y"]
    # 9 over (x=2, y=4) is cut in twos; over x alone in 5 + 4, which is no multiple of them.
    apart = plan(lay((9,), [("x", "y")]), lay((9,), ["x"]))
    assert moves(apart) == ["all_gather x,y", "slice x"]


def test_plans_are_remembered() -> None:
    planner = ReshardPlanner(CommunicationModel(H100, MESH))
    source, target = lay((64, 64), ["x", -1]), lay((64, 64), [-1, "y"])
    assert planner.plan(source, target, 4) is planner.plan(source, target, 4)
    assert planner.plan(source, target, 4).seconds < planner.plan(source, target, 8).seconds


def test_effort_does_not_depend_on_the_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 x 64 takes as many states as 4 x 4: what is searched are layouts, not ranks."""
    asked: list[int] = []
    moves_of = LayoutGraph.moves

    def counted(graph: LayoutGraph, state: State, itemsize: int) -> tuple[Step, ...]:
        asked[-1] += 1
        return moves_of(graph, state, itemsize)

    monkeypatch.setattr(LayoutGraph, "moves", counted)
    for sizes in ((4, 4), (64, 64)):
        asked.append(0)
        mesh = ProcessMesh.of_shape(sizes, ("x", "y"))
        source = lay((8192, 8192), [("x", "y"), -1], mesh)
        plan(source, lay((8192, 8192), ["y", "x"], mesh), cluster=BANDWIDTH)
    assert 0 < asked[1] <= 1.5 * asked[0]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (lay((4,), [-1]), lay((5,), [-1]), "the shapes differ: [4] and [5]"),
        (
            lay((4,), [-1]),
            Layout.replicated(ProcessMesh.of_shape((2,), ("x",)), (4,)),
            "the meshes differ: x=2,y=4 and x=2",
        ),
        (
            lay((4,), [-1], x="sum", y="max"),
            lay((4,), [-1]),
            "[4] sum@x max@y is pending over ['max', 'sum'], in no defined order",
        ),
    ],
)
def test_what_cannot_be_resharded(source: Layout, target: Layout, message: str) -> None:
    with pytest.raises(VerificationError) as error:
        plan(source, target)
    assert error.value.problems == (message,)


def test_moves_print() -> None:
    (move,) = plan(lay((4, 4), [-1, -1], y="sum"), lay((4, 4), [-1, "y"])).moves
    assert isinstance(move, Move)
    assert str(move) == "reduce_scatter sum over y -> [4, 4@y]"
