"""The programs of ranks on different slices: who runs what, holds what, and waits for whom."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autopar
from autopar import ProcessMesh
from autopar.annotate import shard, shard_op
from autopar.compiled import CompiledModel
from autopar.ir import program_pb2
from autopar.ir.program import Op, Program
from autopar.ir.serde import (
    MINIMUM_READER_VERSION,
    SLICES_VERSION,
    program_from_bytes,
    program_to_bytes,
)
from autopar.ir.text import parse_program, print_program
from autopar.mapping.prove import prove
from autopar.runtime.api import read_program
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize
from autopar.runtime.ports.boxes import is_empty
from autopar.runtime.ports.ports import port_box
from tests.slices.models import (
    CUBE,
    PAIR,
    SQUARE,
    TALL,
    THREE,
    Stages,
    Towers,
    batches,
    compiled,
    saved,
    sent,
)

TOWERS = batches(1, 2, 8, 8)[0]


def kinds(program: Program) -> list[str]:
    return [op.kind for op in program.main.ops]


def places(done: CompiledModel) -> dict[str, str]:
    """Returns the slice that the last op of each kind runs on in a completed program."""
    ops = done.serial.main.ops
    return {op.kind.split(".")[1]: str(dict(op.dist.mesh.fixed)) for op in ops if op.dist}


def first_collective(ops: Iterable[Op]) -> int:
    return next(at for at, op in enumerate(ops) if op.kind.startswith("comm."))


@pytest.mark.parametrize("mesh", [PAIR, SQUARE, TALL])
def test_towers_run_at_the_same_time(mesh: ProcessMesh) -> None:
    """A rank computes all of its tower, and nothing of the other, before it waits for anyone."""
    done = compiled(Towers(mesh[0], mesh[1]), mesh, TOWERS)
    left, right, *_ = done.deployment.programs
    for program, own, other in ((left, "gelu", "tanh"), (right, "tanh", "gelu")):
        found = kinds(program)
        assert f"aten.{own}.default" in found
        assert f"aten.{own}_backward.default" in found
        assert not [kind for kind in found if other in kind]
        # The tower ends with a division by the norm.
        alone = program.main.ops[: first_collective(program.main.ops)]
        assert "aten.div.Tensor" in [op.kind for op in alone]
        backward = [op for op in program.main.ops if op.phase == "backward"]
        at = next(i for i, op in enumerate(backward) if op.kind == f"aten.{own}_backward.default")
        assert not [op for op in backward[at:] if op.kind == "comm.broadcast"]


@pytest.mark.parametrize("mesh", [THREE, TALL])
def test_a_rank_on_no_slice_runs_what_is_on_the_whole_mesh(mesh: ProcessMesh) -> None:
    done = compiled(Stages([mesh[0], mesh[1]]), mesh, batches(1, 6, 8)[0])
    idle = done.deployment.program_of(mesh.size - 1)
    assert [op.kind for op in idle.main.ops if op.phase == "forward"] == [
        "aten.empty.memory_format",
        "comm.broadcast",
    ]
    assert not [op for op in idle.main.ops if op.phase == "backward"]


def test_a_rank_holds_what_is_on_its_slice(tmp_path: Path) -> None:
    build = saved(compiled(Stages([PAIR[0], PAIR[1]]), PAIR, batches(1, 6, 8)[0]), tmp_path / "b")
    for rank in (0, 1):
        program = read_program(build, rank)
        held = {p.label for p in program.signature.inputs if not is_empty(port_box(p, {}))}
        weights = {f"layers.{rank}.weight", f"layers.{rank}.bias"}
        state = {f"{of}/{name}" for of in ("exp_avg", "exp_avg_sq", "step") for name in weights}
        assert held == {"lr", "x" if rank == 0 else "target", *weights, *state}


@pytest.mark.parametrize("sizes", [(2, 2), (2, 8), (2, 512)])
def test_programs_grow_with_the_slices_and_not_with_the_ranks(sizes: tuple[int, int]) -> None:
    mesh = ProcessMesh.of_shape(sizes, ["pp", "tp"])
    done = compiled(Stages([mesh[0], mesh[1]], "tp"), mesh, batches(1, 1024, 8)[0])
    deployment = done.deployment
    assert len(deployment.programs) == 2
    assert prove(deployment).classes == 2
    assert {entry.program for entry in deployment.ranks[: sizes[1]]} == {0}
    assert {entry.program for entry in deployment.ranks[sizes[1] :]} == {1}


def test_slices_in_the_middle_of_an_axis_make_a_program_each_and_the_others_one() -> None:
    mesh = ProcessMesh.of_shape((6, 2), ["pp", "tp"])
    done = compiled(Stages([mesh[4], mesh[1]]), mesh, batches(1, 6, 8)[0])
    programs = [entry.program for entry in done.deployment.ranks]
    assert len(set(programs)) == 3
    assert [programs[2 * at] for at in (0, 2, 3, 5)] == [programs[0]] * 4


def test_neighbours_that_send_nothing_to_each_other_are_in_no_group() -> None:
    done = compiled(Stages([CUBE[0][0], CUBE[0][1]]), CUBE, batches(1, 6, 8)[0])
    groups = done.deployment.groups
    assert groups["dp:0-1"][0] == (0, 2)


def test_programs_come_back_from_their_text() -> None:
    done = compiled(Towers(CUBE[0], CUBE[1]["dp", 0]), CUBE, TOWERS)
    for program in (done.serial, done.partitioned):
        assert print_program(parse_program(print_program(program))) == print_program(program)


class Head(nn.Module):
    """A body, of which nothing is said or that it is on the whole mesh, and a head on a slice."""

    def __init__(self, mesh: ProcessMesh, whole: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mesh, self.whole = mesh, whole
        self.on_slice = shard_op(
            self.head, mesh[1], {"input": [None, None], "result": [None, None]}
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.whole:
            x = shard(x, self.mesh, ["pp", None])
        return self.on_slice(torch.relu(self.body(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("whole", [False, True])
def test_a_body_is_on_the_whole_mesh_if_the_user_says_so(whole: bool) -> None:
    done = compiled(Head(SQUARE, whole), SQUARE, batches(1, 6, 8)[0])
    found = places(done)
    assert found["relu"] == ("{}" if whole else "{'pp': 1}")
    values = done.serial.main.values
    assert str(values["body.weight"].dist) == ("[8, 8]" if whole else "[8, 8] on pp=1")
    assert str(values["head.weight"].dist) == "[8, 8] on pp=1"


def test_an_op_with_marks_on_both_sides_runs_on_their_slice() -> None:
    class Scores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            left = torch.tanh(sent(x, SQUARE[0]))
            marks = {0: [None, None], "result": [None, None]}
            scores: Tensor = shard_op(torch.matmul, SQUARE[1], marks)(x, left.t())
            return scores

    found = places(autopar.compile(Scores(), batches(1, 6, 8)[0][0], mesh=SQUARE))
    assert found["tanh"] == "{'pp': 0}"
    assert found["mm"] == "{'pp': 1}"


def test_who_sends_goes_on_computing() -> None:
    """A rank waits for what it has sent when it sends again, or at the end."""
    done = compiled(Stages([PAIR[0], PAIR[1]]), PAIR, batches(1, 6, 8)[0])
    program = done.deployment.program_of(0)
    groups = {name: Group("", 2, 0, (0, 1), "gloo") for name in done.deployment.groups}
    called = [str(node.target) for node in emit(specialize(program, {"pp": 0}), groups).graph.nodes]
    first = next(at for at, name in enumerate(called) if "start_broadcast" in name)
    ends = [at for at, name in enumerate(called) if "end_broadcast" in name]
    assert ends[0] > first + 1


class Tied(nn.Module):
    """Two layers on different slices with one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(shard(x, PAIR[0], [None, None])))
        return F.linear(shard(h, PAIR[1], [None, None]), self.layer.weight)


def test_what_slices_share_is_on_the_smallest_mesh_with_both() -> None:
    done = compiled(Tied(), PAIR, batches(1, 6, 8)[0])
    layouts = {name: str(v.dist) for name, v in done.serial.main.values.items()}
    assert layouts["layer.weight"] == layouts["exp_avg/layer.weight"] == "[8, 8]"
    assert layouts["layer.bias"] == layouts["exp_avg/layer.bias"] == "[8] on pp=0"


def test_a_pattern_splits_a_parameter_where_it_is(tmp_path: Path) -> None:
    shards = {"layers.0.weight": ["tp", None], "layers.1.weight": [None, "pp"]}
    model = Stages([SQUARE[0], SQUARE[1]])
    done = compiled(model, SQUARE, batches(1, 6, 8)[0], shard=shards)
    values = done.serial.main.values
    assert str(values["layers.0.weight"].dist) == "[8@tp, 8] on pp=0"
    # Split along the axis of which its reader has one index, it is kept on all of the mesh.
    assert str(values["layers.1.weight"].dist) == "[8, 8@pp]"


def test_a_forward_pass_returns_what_all_can_read() -> None:
    done = autopar.compile(Stages([PAIR[0], PAIR[1]]), batches(1, 6, 8)[0][0], mesh=PAIR)
    (port,) = done.partitioned.signature.outputs
    assert str(done.serial.main.values[port.name].dist) == "[6, 8]"


def test_a_parallel_module_runs_on_slices() -> None:
    mesh, (x, _) = ProcessMesh([0], ["pp"]), batches(1, 6, 8)[0]
    model = Stages([mesh[0]])
    torch.testing.assert_close(autopar.parallelize(model, x, mesh=mesh)(x), model(x))


def test_only_files_with_scalars_on_slices_need_the_newest_reader() -> None:
    batch = batches(1, 6, 8)[0]
    for parts, oldest in (([PAIR[0], PAIR[1]], SLICES_VERSION), ([PAIR, PAIR], None)):
        for program in compiled(Stages(parts), PAIR, batch).deployment.programs:
            data = program_to_bytes(program)
            assert program_from_bytes(data) == program
            file = program_pb2.File.FromString(data)
            assert file.minimum_reader_version == (oldest or MINIMUM_READER_VERSION)
