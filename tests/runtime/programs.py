"""Programs as text, and deployments of them on meshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from autopar.ir.builds.files import write_build
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.runtime.weights.writing import write_digested

MLP_SERIAL = """
program "mlp" serial
mesh dp=2, tp=3
func main {
  input     %x: f32[8@dp, 6] loc("mlp.py", 1)
  parameter %w1: f32[6, 8@tp]
  parameter %w2: f32[8@tp, 5]
  %h: f32[8@dp, 8@tp] = aten.mm.default(self=%x, mat2=%w1) loc("mlp.py", 2)
  %r: f32[8@dp, 8@tp] = aten.relu.default(self=%h) loc("mlp.py", 3)
  %p: f32[8@dp, 5] sum@tp = aten.mm.default(self=%r, mat2=%w2) loc("mlp.py", 4)
  %y: f32[8@dp, 5] = aten.relu.default(self=%p) loc("mlp.py", 5)
  return %y as "out"
}
"""

# 8 columns over tp=3: blocks of 3, 3 and 2.
_T = "max(0, min(3, 8 - tp * 3))"
_BOX = f"8[min(8, tp * 3); {_T}]"

MLP = f"""
program "mlp" executable
func main {{
  input     %x: f32[4, 6] box [8[dp * 4; 4], 6]
  parameter %w1: f32[6, {_T}] box [6, {_BOX}]
  parameter %w2: f32[{_T}, 5] box [{_BOX}, 5]
  %h: f32[4, {_T}] = aten.mm.default(self=%x, mat2=%w1) loc("mlp.py", 2)
  %r: f32[4, {_T}] = aten.relu.default(self=%h) loc("mlp.py", 3)
  %p: f32[4, 5] = aten.mm.default(self=%r, mat2=%w2) plan(identity=sum) loc("mlp.py", 4)
  %p.1: f32[4, 5] = comm.all_reduce(self=%p, monoid="sum", group="tp") loc("mlp.py", 5)
  %y: f32[4, 5] = aten.relu.default(self=%p.1) loc("mlp.py", 5)
  return %y as "out" box [8[dp * 4; 4], 5]
}}
"""

# A running sum over the rows of %x, then twice a layer; columns split over tp, whose sum each
# iteration needs.
LOOP_SERIAL = """
program "loop" serial
func main {
  input %x: f32[3, 4]
  input %c: f32[4]
  parameter %scale: f32[4]
  %d: f32[4], %s: f32[3] =
    repeat(body="step", trip=3, carried=[%c], sliced=[%x], invariant=[%scale])
  %e: f32[4] = call(callee="layer", operands=[%d])
  %f: f32[4] = call(callee="layer", operands=[%e])
  return %f as "last", %s as "sums"
}
func step {
  input %c: f32[4]
  input %x: f32[4]
  input %scale: f32[4]
  %m: f32[4] = aten.mul.Tensor(self=%x, other=%scale)
  %n: f32[4] = aten.add.Tensor(self=%c, other=%m)
  %t: f32[] = aten.sum.default(self=%n)
  return %n, %t
}
func layer {
  input %x: f32[4]
  %y: f32[4] = aten.add.Tensor(self=%x, other=%x)
  %z: f32[4] = aten.relu.default(self=%y)
  return %z
}
"""

LOOP = """
program "loop" executable
func main {
  input %x: f32[3, 2] box [3, 4[tp * 2; 2]]
  input %c: f32[2] box [4[tp * 2; 2]]
  parameter %scale: f32[2] box [4[tp * 2; 2]]
  %d: f32[2], %s: f32[3] =
    repeat(body="step", trip=3, carried=[%c], sliced=[%x], invariant=[%scale])
  %b: f32[2], %b2: f32[3] = barrier(operands=[%d, %s])
  %e: f32[2] = call(callee="layer", operands=[%b])
  %f: f32[2] = call(callee="layer", operands=[%e])
  return %f as "last" box [4[tp * 2; 2]], %b2 as "sums" box [3]
}
func step {
  input %c: f32[2]
  input %x: f32[2]
  input %scale: f32[2]
  %m: f32[2] = aten.mul.Tensor(self=%x, other=%scale)
  %n: f32[2] = aten.add.Tensor(self=%c, other=%m)
  %t.1: f32[] = aten.sum.default(self=%n)
  %t: f32[] = comm.all_reduce(self=%t.1, monoid="sum", group="tp")
  return %n, %t
}
func layer {
  input %x: f32[2]
  %y: f32[2] = aten.add.Tensor(self=%x, other=%x)
  %z: f32[2] = aten.relu.default(self=%y)
  return %z
}
"""


def deploy(mesh: Mapping[str, int], *texts: str, **groups: Sequence[str]) -> Deployment:
    """Returns a deployment on ranks in row-major order.

    Args:
        mesh: Axes and their sizes.
        texts: One program for all ranks, or one per rank.
        groups: The mesh axes of each group.
    """
    shape = ProcessMesh.of_shape(list(mesh.values()), list(mesh))
    coords = [shape.coordinates(position) for position in range(shape.size)]
    ranks = tuple(
        RankEntry(position % len(texts), tuple(c[axis] for axis in mesh), position)
        for position, c in enumerate(coords)
    )
    lists = {name: _lists(coords, list(mesh), axes) for name, axes in groups.items()}
    return Deployment(tuple(map(parse_program, texts)), tuple(mesh), ranks, lists)


def _lists(
    coords: Sequence[Mapping[str, int]], mesh: Sequence[str], axes: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    lists: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for rank, at in enumerate(coords):
        others = tuple(at[axis] for axis in mesh if axis not in axes)
        lists.setdefault(others, []).append((tuple(at[axis] for axis in axes), rank))
    return tuple(tuple(rank for _, rank in sorted(members)) for members in lists.values())


def with_group(deployment: Deployment, name: str, *lists: tuple[int, ...]) -> Deployment:
    """Returns the deployment with a group whose lists are given."""
    return replace(deployment, groups={**deployment.groups, name: lists})


def serial(text: str) -> Program:
    """Returns a serial program."""
    return parse_program(text)


def build(
    folder: Path, deployment: Deployment, weights: Mapping[str, Tensor], text: str = ""
) -> Path:
    """Writes a build folder, in which a serial program of this text lies."""
    write_build(
        folder,
        serial=parse_program(text or "input %x: f32[1]\nreturn %x"),
        deployment=deployment,
        autopar_version="test",
        write_weights=(lambda file: write_digested(file, weights)) if weights else None,
    )
    return folder
