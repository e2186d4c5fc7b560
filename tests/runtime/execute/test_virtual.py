"""The virtual mesh: equal to the serial program, and clear when ranks don't match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError, RuntimeFailure
from autopar.ir.deployment import Deployment
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.runtime.programs import LOOP, LOOP_SERIAL, MLP, MLP_SERIAL, deploy, serial


def mesh_of(deployment: Deployment, folder: Path, weights: dict[str, Tensor]) -> VirtualMesh:
    write_weights(folder / "weights.safetensors", weights)
    with WeightFile(folder / "weights.safetensors") as file:
        return VirtualMesh(deployment, file)


def mlp_weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"w1": torch.randn(6, 8), "w2": torch.randn(8, 5)}


def test_uneven_ranks_equal_the_serial_program(tmp_path: Path) -> None:
    weights = mlp_weights()
    inputs = {"x": torch.randn(8, 6)}
    mesh = mesh_of(deploy({"dp": 2, "tp": 3}, MLP, tp=["tp"]), tmp_path, weights)
    expected = run_serial(serial(MLP_SERIAL), weights, inputs)["out"]
    assert torch.allclose(mesh.run(inputs)["out"], expected, atol=1e-6)


def test_more_ranks_than_columns(tmp_path: Path) -> None:
    """Ranks 3 and 4 of tp hold nothing: no kernel sees an empty tensor."""
    weights = mlp_weights()
    inputs = {"x": torch.randn(8, 6)}
    mesh = mesh_of(deploy({"dp": 2, "tp": 5}, MLP, tp=["tp"]), tmp_path, weights)
    expected = run_serial(serial(MLP_SERIAL), weights, inputs)["out"]
    assert torch.allclose(mesh.run(inputs)["out"], expected, atol=1e-6)
    code = mesh.ranks[4].module.code
    assert "aten.mm" not in code
    assert "aten.full" in code


def test_call_and_repeat_communicate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {"scale": torch.randn(4)}
    inputs = {"x": torch.randn(3, 4), "c": torch.randn(4)}
    mesh = mesh_of(deploy({"tp": 2}, LOOP, tp=["tp"]), tmp_path, weights)
    found = mesh.run(inputs)
    steps = inputs["c"] + (inputs["x"] * weights["scale"]).cumsum(0)
    assert torch.allclose(found["sums"], steps.sum(1), atol=1e-6)
    assert torch.allclose(found["last"], 4 * steps[-1].relu(), atol=1e-6)
    expected = run_serial(serial(LOOP_SERIAL), weights, inputs)
    assert torch.allclose(found["last"], expected["last"], atol=1e-6)


def test_64_ranks_share_what_is_equal(tmp_path: Path) -> None:
    mesh = mesh_of(deploy({"dp": 2, "tp": 32}, MLP, tp=["tp"]), tmp_path, mlp_weights())
    assert len({id(rank.module) for rank in mesh.ranks}) < 16
    pieces = {id(rank.weights["w1"]) for rank in mesh.ranks}
    assert len(pieces) == 4


def test_trace_sees_every_value_and_may_replace_it(tmp_path: Path) -> None:
    mesh = mesh_of(deploy({"tp": 2}, LOOP, tp=["tp"]), tmp_path, {"scale": torch.ones(4)})
    seen: list[tuple[int, tuple[str, ...], str]] = []

    def trace(rank: int, scope: tuple[str, ...], value: object, tensor: Tensor) -> Tensor:
        name = value.name  # type: ignore[attr-defined]
        seen.append((rank, scope, name))
        return torch.full_like(tensor, 7.0) if (scope, name) == (("f",), "z") else tensor

    found = mesh.run({"x": torch.ones(3, 4), "c": torch.ones(4)}, trace)
    assert found["last"].tolist() == [7.0] * 4
    rank1 = [(scope, name) for rank, scope, name in seen if rank == 1]
    assert rank1[:5] == [(("d[0]",), name) for name in ("m", "n", "t.1", "t")] + [(("d[1]",), "m")]
    assert rank1[-4:] == [((), "e"), (("f",), "y"), (("f",), "z"), ((), "f")]


PAIR = """
program "pair" executable
func main {{
  input %x: f32[2, 2] box [2, 2]
  {ops}
  return %y box [2, 2]
}}
"""


def pair(first: str, second: str, folder: Path) -> VirtualMesh:
    programs = [PAIR.format(ops=ops) for ops in (first, second)]
    return mesh_of(deploy({"tp": 2}, *programs, tp=["tp"], other=["tp"]), folder, {})


def test_different_collectives_are_named(tmp_path: Path) -> None:
    reduce = '%y: f32[2, 2] = comm.all_reduce(self=%x, monoid="{}", group="tp") loc("m.py", {})'
    mesh = pair(reduce.format("sum", 3), reduce.format("max", 4), tmp_path)
    with pytest.raises(RuntimeFailure) as caught:
        mesh.run({"x": torch.ones(2, 2)})
    assert str(caught.value).splitlines() == [
        "ranks meet in one group with different collectives:",
        "  rank 0: comm.all_reduce -> %y (m.py:3) of float32[2, 2] with monoid=sum, group=tp",
        "  rank 1: comm.all_reduce -> %y (m.py:4) of float32[2, 2] with monoid=max, group=tp",
    ]


def test_a_deadlock_is_reported(tmp_path: Path) -> None:
    wait = '%y: f32[2, 2] = comm.all_reduce(self=%x, monoid="sum", group="tp") loc("m.py", 3)'
    mesh = pair(wait, "%y: f32[2, 2] = aten.relu.default(self=%x)", tmp_path)
    with pytest.raises(RuntimeFailure) as caught:
        mesh.run({"x": torch.ones(2, 2)})
    assert str(caught.value).splitlines() == [
        "deadlock: 1 ranks wait for each other; 1 ranks have finished",
        "  rank 0: waits at comm.all_reduce -> %y (m.py:3) for ranks [1]",
    ]


def test_a_failing_op_names_rank_value_and_line(tmp_path: Path) -> None:
    bad = '%y: f32[2, 2] = aten.mm.default(self=%x, mat2=%z) loc("m.py", 5)'
    ops = f"%z: f32[3] = aten.full.default(size=[3], fill_value=1.0)\n  {bad}"
    mesh = pair("%y: f32[2, 2] = aten.relu.default(self=%x)", ops, tmp_path)
    with pytest.raises(RuntimeFailure, match=r"rank 1: aten.mm.default -> %y \(m.py:5\): "):
        mesh.run({"x": torch.ones(2, 2)})


def test_a_wrong_shape_is_an_error_at_its_op(tmp_path: Path) -> None:
    wrong = '%y: f32[2, 2] = aten.sum.dim_IntList(self=%x, dim=[0]) loc("m.py", 5)'
    mesh = pair(wrong, wrong, tmp_path)
    with pytest.raises(RuntimeFailure, match=r"computed f32\[2\], the program says f32\[2"):
        mesh.run({"x": torch.ones(2, 2)})


def test_shapes_of_what_nobody_reads_may_be_wrong() -> None:
    """PyTorch predicts some wrong, as the second result of aten._embedding_bag_forward_only."""
    program = serial(
        """
        program "p" serial
        func main {
          input %x: f32[2, 2]
          %y: f32[2], %at: i64[7] = aten.max.dim(self=%x, dim=0)
          return %y as "out"
        }
        """
    )
    assert torch.equal(run_serial(program, {}, {"x": torch.eye(2)})["out"], torch.ones(2))


def test_wrong_inputs_are_all_reported_before_anything_runs(tmp_path: Path) -> None:
    mesh = mesh_of(deploy({"tp": 2}, LOOP, tp=["tp"]), tmp_path, {"scale": torch.ones(4)})
    with pytest.raises(InvalidInputError) as caught:
        mesh.run({"x": torch.ones(3, 5), "cc": torch.ones(4)})
    assert str(caught.value).splitlines() == [
        "wrong inputs:",
        "  - there is no input 'cc'; did you mean c?",
        "  - input 'x' is f32[3, 5], it must be f32[3, 4]",
        "  - input 'c' is missing; it is f32[4]",
    ]
    with pytest.raises(InvalidInputError, match=r"'c' is i64\[4\], it must be f32\[4\]"):
        mesh.run({"x": torch.ones(3, 4), "c": torch.ones(4, dtype=torch.int64)})
    with pytest.raises(InvalidInputError, match="input 'c' is no tensor: it is an array of <U1"):
        mesh.run({"x": torch.ones(3, 4), "c": np.array(["a", "b"])})


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_are_welcome(tmp_path: Path) -> None:
    mesh = mesh_of(deploy({"tp": 2}, LOOP, tp=["tp"]), tmp_path, {"scale": torch.ones(4)})
    zeros = np.broadcast_to(np.float32(0), (4,))
    assert mesh.run({"x": torch.zeros(3, 4), "c": zeros})["last"].tolist() == [0] * 4
