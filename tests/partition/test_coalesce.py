"""Reductions that wait for nothing in common are joined, and compute what they did alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.cost import Cluster
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.ir.verify import verify_structure
from autopar.mapping.deploy import deploy
from autopar.partition import Coalesce, Partition
from autopar.runtime.execute.virtual import VirtualMesh
from autopar.runtime.weights.weights import WeightFile
from autopar.runtime.weights.writing import write_weights
from tests.partition.programs import random_program
from tests.partition.test_random_programs import arrays

CLUSTER = Cluster.load("cpu")

SUMS = """
program partitioned
mesh x=2

func main {
  input %a: f32[4] replicated
  input %b: f32[2, 3] replicated
  input %c: f32[2] replicated
  %s: f32[4] = comm.all_reduce(self=%a, monoid="sum", axes=["x"])
  %m: f32[2] = comm.all_reduce(self=%c, monoid="max", axes=["x"])
  %n: f32[2] = aten.neg.default(self=%m)
  %u: f32[2, 3] = comm.all_reduce(self=%b, monoid="sum", axes=["x"])
  %t: f32[3, 2] = aten.t.default(self=%u)
  %w: f32[2] = comm.all_reduce(self=%n, monoid="sum", axes=["x"])
  %out: f32[3, 2] = aten.add.Tensor(self=%t, other=%w) phase=update
  return %out, %s
}
"""

JOINED_SUMS = """
m = comm.all_reduce(c)
n = aten.neg.default(m)
s.flat = aten.view.default(a)
w.flat = aten.view.default(n)
u.flat = aten.view.default(b)
u.bucket = aten.cat.default(s.flat, w.flat, u.flat)
u.reduced = comm.all_reduce(u.bucket)
s.slice = aten.slice_copy.Tensor(u.reduced)
s = aten.view.default(s.slice)
w.slice = aten.slice.Tensor(u.reduced)
w = aten.view.default(w.slice)
u.slice = aten.slice.Tensor(u.reduced)
u = aten.view.default(u.slice)
t = aten.t.default(u)
out = aten.add.Tensor(t, w)
"""

SCATTERED = """
program partitioned
mesh x=3

func main {
  input %a: f32[6, 2] replicated
  input %b: f32[3] replicated
  input %c: f32[2, 6] replicated
  %s: f32[2, 2] = comm.reduce_scatter(self=%a, dim=0, monoid="sum", axes=["x"])
  %t: f32[1] = comm.reduce_scatter(self=%b, dim=0, monoid="sum", axes=["x"])
  %u: f32[2, 2] = comm.reduce_scatter(self=%c, dim=1, monoid="sum", axes=["x"])
  %v: f32[2, 2] = aten.add.Tensor(self=%s, other=%t)
  %w: f32[2, 2] = aten.add.Tensor(self=%v, other=%u)
  %sum: f32[2, 2] = comm.all_reduce(self=%w, monoid="sum", axes=["x"])
  return %sum
}
"""

TWICE = """
program partitioned
mesh x=3, y=2

func main {
  input %a: f32[6, 2] replicated
  input %b: f32[3] replicated
  %s: f32[2, 2] = comm.reduce_scatter(self=%a, dim=0, monoid="sum", axes=["x"])
  %t: f32[2, 2] = comm.all_reduce(self=%s, monoid="sum", axes=["y"])
  %u: f32[1] = comm.reduce_scatter(self=%b, dim=0, monoid="sum", axes=["x"])
  %v: f32[1] = comm.all_reduce(self=%u, monoid="sum", axes=["y"])
  %sum: f32[2, 2] = aten.add.Tensor(self=%t, other=%v) phase=update
  return %sum
}
"""


def coalesced(program: Program) -> Program:
    """Returns the coalesced program, which must be well-formed."""
    joined = Coalesce(CLUSTER)(program)
    verify_structure(joined)
    return joined


def kinds(program: Program) -> list[str]:
    return [op.kind for op in program.main.ops]


def test_sums_that_wait_for_nothing_in_common_are_joined() -> None:
    lines = [
        f"{', '.join(op.results)} = {op.kind}({', '.join(op.operands)})"
        for op in coalesced(parse_program(SUMS)).main.ops
    ]
    assert lines == JOINED_SUMS.strip().splitlines()


def test_what_its_phase_waits_for_travels_apart() -> None:
    found = coalesced(parse_program(SUMS.replace(" phase=update", "")))
    (cat,) = (op for op in found.main.ops if op.kind == "aten.cat.default")
    assert cat.operands == ("w.flat", "u.flat")


def test_sums_of_scattered_sums_are_joined_too() -> None:
    found = coalesced(parse_program(TWICE))
    sums = [(op.kind, op.arg("axes")) for op in found.main.ops if op.kind.startswith("comm.")]
    assert sums == [("comm.reduce_scatter", ("x",)), ("comm.all_reduce", ("y",))]


def test_a_bucket_holds_so_many_bytes() -> None:
    names = [f"%s{at}" for at in range(30)]
    sums = [
        f'{name}: f32[250000] = comm.all_reduce(self=%x, monoid="sum", axes=["x"])'
        for name in names
    ]
    body = "\n".join(["input %x: f32[250000] replicated", *sums, f"return {', '.join(names)}"])
    found = coalesced(parse_program(f"program partitioned\nmesh x=2\nfunc main {{\n{body}\n}}"))
    assert kinds(found).count("comm.all_reduce") == 2
    # 25 MiB hold 26 times 1 MB.
    cats = [len(op.operands) for op in found.main.ops if op.kind == "aten.cat.default"]
    assert cats == [26, 4]


def test_scattered_sums_are_joined_block_by_block() -> None:
    found = kinds(coalesced(parse_program(SCATTERED)))
    assert found.count("comm.reduce_scatter") == 2
    assert found.count("aten.cat.default") == 1


def test_what_takes_longer_to_copy_than_to_start_stays_alone() -> None:
    text = SUMS.replace("2, 3]", "2000, 3000]").replace("3, 2]", "3000, 2000]")
    program = parse_program(text.replace("f32[2]", "f32[2000]"))
    joined = coalesced(program)
    (cat,) = (op for op in joined.main.ops if op.kind == "aten.cat.default")
    assert cat.operands == ("s.flat", "w.flat")


@pytest.mark.parametrize("text", [SUMS, SCATTERED, TWICE])
def test_joined_sums_are_the_sums(text: str, tmp_path: Path) -> None:
    assert_same(parse_program(text), 0, tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_any_program_computes_what_it_did(seed: int, tmp_path: Path) -> None:
    assert_same(Partition(CLUSTER)(random_program(seed, 16)), seed, tmp_path)


def assert_same(program: Program, seed: int, folder: Path) -> None:
    """Runs a partitioned program on all ranks, as it is and coalesced."""
    given = arrays(program, seed)
    stored = [p.name for p in program.signature.inputs if p.role == "parameter"]
    write_weights(folder / "weights", {name: given.pop(name) for name in stored})
    with WeightFile(folder / "weights") as file:
        expected = VirtualMesh(deploy(program, CLUSTER), file).run(given)
        found = VirtualMesh(deploy(coalesced(program), CLUSTER), file).run(given)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, equal_nan=True)
