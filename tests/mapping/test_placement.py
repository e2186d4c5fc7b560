"""Process groups and placements: closed forms against the coordinates that they stand for."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from autopar.base.errors import InvalidInputError
from autopar.cost.cluster import Cluster
from autopar.cost.links import LinkLevel
from autopar.ir.expr.expression import Coord
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Op, Program, Ref
from autopar.mapping.groups import group_name, named_groups
from autopar.mapping.map import Map
from autopar.mapping.placement import parse_placement
from autopar.mapping.traffic import Traffic, traffic
from tests.mapping.programs import Step, function, program, step

MESH = ProcessMesh.of_shape((2, 4), ("dp", "tp"))


def two_level(hosts: int, per_host: int) -> Cluster:
    """Fast links within a host, links a hundred times slower between hosts."""
    fast = LinkLevel("fast", per_host, 1e-6, 1e-11)
    slow = LinkLevel("slow", hosts, 1e-5, 1e-9)
    return Cluster("two-level", "device", 10**9, 1e9, (("f32", 1e12),), (fast, slow))


def reductions(mesh: ProcessMesh, **nbytes: int) -> Program:
    """One all_reduce of that many bytes over each named axis."""
    steps: list[Step | Op] = []
    for axis, size in nbytes.items():
        steps.append(Step(f"in_{axis}", "aten.view", "x", (size // 4,)))
        steps.append(
            step(f"r_{axis}", "all_reduce", f"in_{axis}", (size // 4,), monoid="sum", axes=(axis,))
        )
    return program((1,), steps, mesh)


class TestGroups:
    def test_lists_follow_the_blocks(self) -> None:
        axes = [("tp",), ("dp",), ("dp", "tp"), ("tp", "dp")]
        assert named_groups(MESH, [(each, ()) for each in axes], range(8)) == {
            "tp": ((0, 1, 2, 3), (4, 5, 6, 7)),
            "dp": ((0, 4), (1, 5), (2, 6), (3, 7)),
            "dp_tp": ((0, 1, 2, 3, 4, 5, 6, 7),),
            "tp_dp": ((0, 4, 1, 5, 2, 6, 3, 7),),
        }

    @pytest.mark.parametrize("axes", [a for n in (1, 2, 3) for a in permutations("abc", n)])
    def test_members_differ_in_the_axes_alone_first_axis_major(self, axes: tuple[str, ...]) -> None:
        mesh = ProcessMesh.of_shape((2, 3, 2), ("a", "b", "c"))
        processes = [5, 0, 7, 11, 2, 9, 1, 3, 10, 4, 8, 6]
        lists = named_groups(mesh, [(axes, ())], processes)["_".join(axes)]
        assert sorted(rank for members in lists for rank in members) == list(range(12))
        for members in lists:
            coords = [mesh.coordinates(processes[rank]) for rank in members]
            assert len({tuple(c[a] for a in "abc" if a not in axes) for c in coords}) == 1
            along = [tuple(c[a] for a in axes) for c in coords]
            assert along == sorted(along)

    def test_process_ids_need_not_count_from_zero(self) -> None:
        mesh = ProcessMesh([[7, 3], [10, 5]], ["a", "b"])
        ranks = {3: 0, 5: 1, 7: 2, 10: 3}
        assert named_groups(mesh, [(("b",), ())], sorted(ranks)) == {
            "b": ((ranks[7], ranks[3]), (ranks[10], ranks[5]))
        }

    def test_slices_meet_in_groups_of_some_coordinates(self) -> None:
        mesh = ProcessMesh.of_shape((3, 2, 2), ("a", "b", "c"))
        used = [(("a",), ((0,), (2,))), (("a", "c"), ((0, 1), (1, 0)))]
        assert named_groups(mesh, used, range(12)) == {
            "a:0-2": ((0, 8), (1, 9), (2, 10), (3, 11)),
            "a_c:0.1-1.0": ((1, 4), (3, 6)),
        }

    def test_names_never_collide(self) -> None:
        mesh = ProcessMesh.of_shape((2, 2, 2), ("a", "b", "a_b"))
        assert group_name(("a", "b"), mesh) != group_name(("a_b",), mesh)

    def test_runs_of_an_axis_have_groups_of_their_own(self) -> None:
        mesh = ProcessMesh.of_shape((4, 2), ("a", "b"))
        used = [(("a",), (), (("a", range(1, 4)),)), (("b", "a"), (), (("a", range(2)),))]
        assert named_groups(mesh, used, range(8)) == {
            "a[1..3]": ((2, 4, 6), (3, 5, 7)),
            "b_a[0..1]": ((0, 2, 1, 3),),
        }

    def test_many_members_are_told_by_a_digest(self) -> None:
        mesh = ProcessMesh.of_shape((40,), ("a",))
        one, other = (
            tuple((at,) for at in order) for order in (range(40), [0, 1, 3, 2, *range(4, 40)])
        )
        names = {group_name(("a",), mesh, each) for each in (one, other)}
        assert len(names) == 2
        assert all(len(name) < 24 and name.startswith("a:0-1-40-39-") for name in names)


class TestGivenPlacement:
    def processes(self, placement: str | tuple[int, ...]) -> tuple[int, ...]:
        return Map(two_level(2, 4), placement).processes(program((8,), [], MESH))

    def test_identity(self) -> None:
        assert self.processes("identity") == tuple(range(8))

    def test_order(self) -> None:
        assert self.processes((7, 6, 5, 4, 3, 2, 1, 0)) == (7, 6, 5, 4, 3, 2, 1, 0)
        assert self.processes("7,6,5,4 3 2 1, 0") == (7, 6, 5, 4, 3, 2, 1, 0)

    def test_text_of_the_option(self) -> None:
        assert parse_placement("auto") == "auto"
        assert parse_placement("1, 0") == (1, 0)

    def test_file(self, tmp_path: Path) -> None:
        path = tmp_path / "placement.txt"
        path.write_text("# one line per host\n0 2 4 6\n1 3 5 7  # odd ones\n")
        assert self.processes(str(path)) == (0, 2, 4, 6, 1, 3, 5, 7)

    @pytest.mark.parametrize(
        ("placement", "expected"),
        [
            ((0, 1, 2, 3, 4, 5, 6, 6), "process 6 appears more than once; process 7 is missing"),
            ((0, 1, 2), "process 3, 4, 5, 6, 7 is missing"),
            ("0,1,2,3,4,5,6,9", "the mesh has no process 9; process 7 is missing"),
            ("fastest", "'fastest' is none of identity, auto, a list of process ids"),
            ("x" * 5000, "is none of identity, auto, a list of process ids"),
            ("", "process 0, 1, 2, 3, 4, 5, 6, 7 is missing"),
        ],
    )
    def test_wrong(self, placement: str | tuple[int, ...], expected: str) -> None:
        with pytest.raises(InvalidInputError, match=expected):
            self.processes(placement)

    def test_wrong_file(self, tmp_path: Path) -> None:
        path = tmp_path / "placement.txt"
        path.write_text("0 1 two")
        with pytest.raises(InvalidInputError, match="'two' is not a process id"):
            parse_placement(str(path))
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(InvalidInputError, match="placement file"):
            parse_placement(str(path))


class TestAuto:
    """On two hosts of four devices, the axis of four that talks most belongs within the hosts."""

    WIDE = ProcessMesh.of_shape((4, 2), ("wide", "narrow"))

    def processes(self, **nbytes: int) -> tuple[int, ...]:
        return Map(two_level(2, 4), "auto").processes(reductions(self.WIDE, **nbytes))

    def test_heavy_axis_goes_inside(self) -> None:
        # Ranks 0-3, one host, carry out the four processes along `wide`.
        assert self.processes(wide=4_000_000, narrow=4) == (0, 2, 4, 6, 1, 3, 5, 7)

    def test_order_of_the_mesh_where_it_is_best(self) -> None:
        assert self.processes(wide=4, narrow=4_000_000) == tuple(range(8))

    def test_order_of_the_mesh_where_nothing_is_said(self) -> None:
        assert self.processes() == tuple(range(8))

    def test_three_axes(self) -> None:
        mesh = ProcessMesh.of_shape((2, 2, 2), ("a", "b", "c"))
        mapping = Map(two_level(4, 2), "auto")
        talk = reductions(mesh, a=4_000_000, b=4, c=4)
        ranks = mapping.processes(talk)
        assert {ranks[0] ^ ranks[1], ranks[2] ^ ranks[3]} == {4}  # each host: one a, both ways

    def test_ids_of_the_mesh_are_kept(self) -> None:
        mesh = ProcessMesh([[3, 2], [1, 0], [7, 6], [5, 4]], ("wide", "narrow"))
        talk = reductions(mesh, wide=4_000_000, narrow=4)
        assert Map(two_level(2, 4), "auto").processes(talk) == (3, 1, 7, 5, 2, 0, 6, 4)


class TestTraffic:
    def test_counts_loops_and_sums_up_equal_ones(self) -> None:
        body = function("body", (8,), [step("u", "all_reduce", "x", (8,), axes=("tp",))])
        gather = step("g", "all_gather", "x", (8,), dim=0, size=8, axes=("dp",))
        loop = Op("repeat", (("body", "body"), ("trip", 3), ("carried", (Ref("x"),))), ("y",))
        call = Op("call", (("callee", "body"), ("operands", (Ref("y"),))), ("z",))
        one = program((4 - Coord("dp"),), [gather, loop, call], MESH, [body])
        assert traffic(one, MESH) == (
            Traffic("comm.all_gather", ("dp",), 32, 1),
            Traffic("comm.all_reduce", ("tp",), 32, 4),
        )
