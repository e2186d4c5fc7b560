# ruff: noqa: E501
"""Programs in text form that several tests use."""

from __future__ import annotations

COMPLETED = """
program "mlp" serial
file mlp = "mlp.onnx"
mesh dp=2, tp=4

func main {
  input     %x: f32[8@dp, 16] ~annotated("--shard x=[dp]")
  parameter %w: f32[16, 12@tp] as "fc.weight" ~implied("by aten.mm.default")
  parameter %v: f32[12@tp, 16] ~implied("by aten.mm.default")
  %h: f32[8@dp, 12@tp] = aten.mm.default(self=%x, mat2=%w) {m: 8@dp, n: 12@tp} ~implied loc(mlp, "fc1")
  %r: f32[8@dp, 12@tp] = aten.relu.default(self=%h) {i0: 8@dp, i1: 12@tp} ~implied loc(mlp, "act")
  %p: f32[8@dp, 16] sum@tp = aten.mm.default(self=%r, mat2=%v) {m: 8@dp, k: 12@tp} ~implied loc(mlp, "fc2")
  %y: f32[8@dp, 16] = aten.relu.default(self=%p) {i0: 8@dp} ~implied loc(mlp, "out")
  return %y as "logits"
}
"""
"""A completed program of two matrix products, in exactly the form that is printed."""

PARTITIONED = """
program "mlp" partitioned
mesh tp=4

func main {
  input     %x: f32[8, 16] replicated
  parameter %w: f32[16, max(0, min(3, tp * -3 + 10))] of [16, 10@tp]
  %h: f32[8, max(0, min(3, tp * -3 + 10))] of [8, 10@tp] = aten.mm.default(self=%x, mat2=%w)
  %h.1: f32[8, 10] replicated = comm.all_gather(self=%h, dim=1, size=10, axes=["tp"])
  return %h.1
}
"""
"""What a rank runs, with an uneven split."""

EXECUTABLE = """
program "mlp" executable

func main {
  input     %x: f32[8, 16] box [8, 16]
  parameter %w: f32[16, max(0, min(3, tp * -3 + 10))] box [16, 10[min(tp * 3, 10); max(0, min(3, tp * -3 + 10))]]
  %h: f32[8, max(0, min(3, tp * -3 + 10))] = aten.mm.default(self=%x, mat2=%w)
  %h.1: f32[8, 10] = comm.all_gather(self=%h, dim=1, size=10, group="tp")
  return %h.1 box [8, 10]
}
"""
"""The same after mapping and strip."""

LOOP = """
program "loop" serial

func main {
  input %acc: f32[4]
  input %xs: f32[3, 4]
  input %k: f32[]
  %total: f32[4], %all: f32[3, 4] = repeat(body="step", trip=3, carried=[%acc], sliced=[%xs], invariant=[%k])
  %end: f32[4] = call(callee="double", operands=[%total])
  %done: f32[4], %rest: f32[3, 4] = barrier(operands=[%end, %all])
  return %done, %rest
}

func step {
  input %a: f32[4]
  input %x: f32[4]
  input %k: f32[]
  %s: f32[4] = aten.add.Tensor(self=%a, other=%x)
  %t: f32[4] = aten.mul.Tensor(self=%s, other=%k)
  return %s, %t
}

func double {
  input %a: f32[4]
  %b: f32[4] = aten.mul.Tensor(self=%a, other=2)
  return %b
}
"""
"""A loop, a call and a barrier."""

ALL = {
    "completed": COMPLETED,
    "partitioned": PARTITIONED,
    "executable": EXECUTABLE,
    "loop": LOOP,
}
