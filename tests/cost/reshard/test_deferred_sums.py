"""Sums that wait are reduced without ways around, which spare latencies that buckets pay anyway."""

from __future__ import annotations

import pytest

from autopar.annotate import parse_mesh
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.cost.reshard.deferred_sums import awaited
from autopar.ir.layout import Layout
from autopar.ir.program import Op, Ref

MESH = parse_mesh("a=8,b=8")
PLANNER = ReshardPlanner(CommunicationModel(Cluster.load("h200"), MESH))


def op(kind: str, operand: str, result: str, phase: str) -> Op:
    return Op(kind, (("self", Ref(operand)),), (result,), phase=phase)


def test_a_view_of_what_waits_waits() -> None:
    ops = [
        op("aten.relu.default", "x", "now", "backward"),
        op("aten.relu.default", "now", "later", "backward"),
        op("aten.view.default", "later", "view", "backward"),
        op("aten.view.default", "view", "unread", "backward"),
        op("aten.relu.default", "view", "new", "update"),
    ]
    assert awaited(ops) == {"now"}
    assert awaited([*ops, op("aten.relu.default", "unread", "y", "backward")]) == {
        *("now", "later", "view", "unread")
    }


def plans(*shape: int) -> list[list[str]]:
    """Returns the moves that reduce a tensor over both axes: of one that is awaited, or waits."""
    target = Layout.replicated(MESH, shape)
    source = target.with_partial({"a": "sum", "b": "sum"})
    found = [planner.plan(source, target, 4) for planner in (PLANNER, PLANNER.deferred)]
    alone, waiting = (reshard.seconds for reshard in found)
    assert alone <= waiting * (1 + 1e-9)
    return [[move.kind for move in reshard.moves] for reshard in found]


def test_what_waits_is_reduced_at_once() -> None:
    around, at_once = plans(768)
    assert around == ["all_reduce", "permute", "all_reduce"]
    assert at_once == ["all_reduce"]


@pytest.mark.parametrize("rows", [256, 4096, 65536])
def test_what_is_fastest_alone_stays_where_no_way_around_is(rows: int) -> None:
    assert plans(rows, 1024)[0] == plans(rows, 1024)[1] == ["all_reduce"]


def test_seconds_are_those_of_moves_alone() -> None:
    target = Layout.replicated(MESH, (768,))
    source = target.with_partial({"a": "sum", "b": "sum"})
    (move,) = PLANNER.deferred.plan(source, target, 4).moves
    model = PLANNER.model
    assert move.seconds == model.all_reduce(3072, ("a", "b")) + model.local_copy(3072)
