"""From a partitioned program to a deployment: groups named, attributes stripped, ranks listed."""

from __future__ import annotations

import pytest

from autopar.base.errors import VerificationError
from autopar.cost.cluster import Cluster
from autopar.ir.deployment import RankEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.ir.text import parse_program, print_program
from autopar.mapping import Map, Strip, deploy
from autopar.mapping.strip import distribution_attributes
from tests.mapping.programs import program, step

MESH = ProcessMesh.of_shape((2, 3), ("dp", "tp"))
CLUSTER = Cluster.load("cpu")


# 7 elements over tp in blocks, 3, 3 and 1, gathered again, and reduced over everything.
PARTITIONED = """\
program partitioned
file model = "model.py"
mesh dp=2, tp=3

signature {}

func main {
  input %x: f32[7] replicated ~default
  %s: f32[max(0, min(3, tp * -3 + 7))] of [7] = comm.reduce_scatter(self=%x, dim=0, monoid="sum", axes=["tp"]) {} ~default loc(model, 3)
  %g: f32[7] replicated                       = comm.all_gather(self=%s, dim=0, size=7, axes=["tp"]) {} ~default loc(model, 4)
  %r: f32[7] replicated                       = comm.all_reduce(self=%g, monoid="max", axes=["dp", "tp"]) {} ~default loc(model, 5)
  return %r
}
"""  # noqa: E501
EXECUTABLE = """\
program executable
file model = "model.py"

signature {}

func main {
  input %x: f32[7]
  %s: f32[max(0, min(3, tp * -3 + 7))] = comm.reduce_scatter(self=%x, dim=0, monoid="sum", group="tp") loc(model, 3)
  %g: f32[7]                           = comm.all_gather(self=%s, dim=0, size=7, group="tp") loc(model, 4)
  %r: f32[7]                           = comm.all_reduce(self=%g, monoid="max", group="dp_tp") loc(model, 5)
  return %r
}
"""  # noqa: E501


def partitioned() -> Program:
    return parse_program(PARTITIONED)


def test_deployment() -> None:
    deployed = deploy(partitioned(), CLUSTER)
    assert deployed.axes == ("dp", "tp")
    assert deployed.ranks[:4] == (
        RankEntry(0, (0, 0), 0),
        RankEntry(0, (0, 1), 1),
        RankEntry(0, (0, 2), 2),
        RankEntry(0, (1, 0), 3),
    )
    assert deployed.groups == {"tp": ((0, 1, 2), (3, 4, 5)), "dp_tp": ((0, 1, 2, 3, 4, 5),)}
    (executable,) = deployed.programs
    assert print_program(executable) == EXECUTABLE


def test_placement_moves_coordinates_and_groups_together() -> None:
    deployed = deploy(partitioned(), CLUSTER, (5, 4, 3, 2, 1, 0))
    assert deployed.coords_of(0) == {"dp": 1, "tp": 2}
    assert deployed.ranks[0].process_id == 5
    assert deployed.groups["tp"] == ((5, 4, 3), (2, 1, 0))
    for members in deployed.groups["tp"]:
        assert [deployed.coords_of(rank)["tp"] for rank in members] == [0, 1, 2]


def test_observer_sees_each_pass() -> None:
    seen = {}
    deploy(partitioned(), CLUSTER, observe=lambda name, after: seen.update({name: after}))
    assert list(seen) == ["map", "strip"]
    assert distribution_attributes(seen["map"])
    assert not distribution_attributes(seen["strip"])


def test_inputs_are_unchanged() -> None:
    program_ = partitioned()
    deploy(program_, CLUSTER)
    assert program_ == partitioned()


def test_strip_lists_what_is_left() -> None:
    with pytest.raises(VerificationError) as caught:
        Strip()(partitioned())
    assert len(caught.value.problems) == 3
    assert "%s = comm.reduce_scatter names mesh axes (model.py:3)" in caught.value.problems[0]


def test_every_attribute_is_found() -> None:
    found = "\n".join(distribution_attributes(partitioned()))
    assert found.startswith("the program has a mesh")
    assert "%x has a layout" in found
    assert "%r = comm.all_reduce has a choice" in found


def test_deploy_proves_communication() -> None:
    # The reduce_scatter claims to leave 2 elements everywhere, but 7 over 3 is 3, 3, 1.
    wrong = step("s", "reduce_scatter", "x", (2,), dim=0, monoid="sum", axes=("tp",))
    with pytest.raises(VerificationError, match="what it gets along dimension 0 is 2 on rank 0"):
        deploy(program((7,), [wrong], MESH), CLUSTER)


def test_a_program_without_mesh_is_refused() -> None:
    with pytest.raises(ValueError, match="has no mesh to map"):
        Map(CLUSTER)(program((7,), []))


def test_large_mesh_shares_one_program_and_one_class() -> None:
    mesh = ProcessMesh.of_shape((64, 64), ("dp", "tp"))
    reduced = step("r", "all_reduce", "x", (7,), monoid="sum", axes=("tp",))
    deployed = deploy(program((7,), [reduced], mesh), CLUSTER)
    assert len(deployed.programs) == 1
    assert deployed.world_size == 4096
    assert deployed.coords_of(4095) == {"dp": 63, "tp": 63}
    assert len(deployed.groups["tp"]) == 64
    assert deployed.groups["tp"][1][:2] == (64, 65)
