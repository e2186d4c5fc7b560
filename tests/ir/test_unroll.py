"""Loops within loops, and along any dimension, compute what they compute without loops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.annotate import parse_mesh
from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.ir.serde import program_from_bytes, program_to_bytes
from autopar.ir.text import parse_program, print_program
from autopar.ir.unroll import has_loops, unrolled
from autopar.ir.verify import verify_structure
from autopar.pipeline import CompileOptions, compile_program
from autopar.runtime.execute.serial import run_serial
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.verification.verification import verify_mesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.given.random_pins import random_pins

NESTED = """
  input     %x: f32[12, 6] as "x"
  parameter %w: f32[6, 10] as "w"
  parameter %v: f32[10, 4] as "v"
  %x.part: f32[4, 6] = autopar.loop_take(self=%x, trip=3)
  %x.wide: f32[4, 6] = aten.mul.Scalar(self=%x.part, other=2.0) loops(microbatch=3)
  %w.part: f32[6, 5] = autopar.loop_take(self=%w, trip=2, dim=1, loop="wide") loops(microbatch=3)
  %v.part: f32[5, 4] = autopar.loop_take(self=%v, trip=2, loop="wide") loops(microbatch=3)
  %h: f32[4, 5] = aten.mm.default(self=%x.wide, mat2=%w.part) loops(microbatch=3, wide=2)
  %a: f32[4, 5] = aten.relu.default(self=%h) loops(microbatch=3, wide=2)
  %y: f32[4, 4] = aten.mm.default(self=%a, mat2=%v.part) loops(microbatch=3, wide=2)
  %y.sum: f32[4, 4] = autopar.loop_reduce(self=%y, monoid="sum") loops(microbatch=3, wide=2)
  %a.all: f32[4, 10] = autopar.loop_cat(self=%a, trip=2, dim=1) loops(microbatch=3, wide=2)
  %y.cat: f32[12, 4] = autopar.loop_cat(self=%y.sum, trip=3) loops(microbatch=3)
  %a.sum: f32[4, 10] = autopar.loop_reduce(self=%a.all, monoid="sum") loops(microbatch=3)
  %d: f32[6, 5] = autopar.loop_take(self=%w, trip=2, dim=1, loop="other")
  %e: f32[6, 5] = aten.tanh.default(self=%d) loops(other=2)
  %e.sum: f32[6, 5] = autopar.loop_reduce(self=%e, monoid="sum") loops(other=2)
  return %y.cat as "y.cat", %a.sum as "a.sum", %e.sum as "e.sum"
"""


def nested() -> Program:
    program = parse_program(NESTED)
    verify_structure(program)
    return program


def test_loops_are_read_as_they_are_written() -> None:
    assert parse_program(print_program(nested())) == nested()
    assert program_from_bytes(program_to_bytes(nested())) == nested()


def test_what_is_in_two_loops_runs_as_often_as_both() -> None:
    plain = unrolled(nested())
    verify_structure(plain)
    assert not has_loops(plain.main)
    kinds = [op.kind for op in plain.main.ops]
    assert kinds.count("aten.mm.default") == 2 * 3 * 2
    assert kinds.count("aten.tanh.default") == 2
    assert sorted({op.microbatch for op in plain.main.ops}) == [0, 1, 2]


def test_nested_loops_compute_the_same() -> None:
    weights = {"w": torch.randn(6, 10), "v": torch.randn(10, 4)}
    x = torch.randn(12, 6)
    found = list(run_serial(nested(), weights, {"x": x}).values())
    a = torch.relu(2 * x @ weights["w"])
    expected = [a @ weights["v"], sum(a.chunk(3)), sum(weights["w"].tanh().chunk(2, 1))]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("mesh", ["1", "3", "3x2", "2x2x2"])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_compute_it_whatever_is_pinned(mesh: str, seed: int, tmp_path: Path) -> None:
    program, shape = nested(), parse_mesh(mesh)
    pins = random_pins(program, shape, "nested", seed)
    done = compile_program(program, CompileOptions(shape, Cluster.load("cpu"), "auto", pins))
    weights = {"w": torch.randn(6, 10), "v": torch.randn(10, 4)}
    write_weights(tmp_path / "weights", weights)
    with WeightFile(tmp_path / "weights") as file:
        ranks = VirtualMesh(done.deployment, file)
        assert verify_mesh(done.serial, weights, ranks, {"x": torch.randn(12, 6)}).ok
