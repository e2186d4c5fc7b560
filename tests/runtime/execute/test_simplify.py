"""Functions without needless ops compute the same, by fewer calls."""

from __future__ import annotations

import torch

from autopar.ir.text import parse_program
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.simplify import simplified

CHAINS = """
program "chains" executable
size $n = 1..64 planned 8

func main {
  input %x: f32[$n, 6]
  %a: f32[$n, 2, 3] = aten.view.default(self=%x, size=[$n, 2, 3])
  %b: f32[$n * 2, 3] = aten.view.default(self=%a, size=[$n * 2, 3])
  %c: f32[3, $n * 2] = aten.permute.default(self=%b, dims=[1, 0])
  %d: f32[3, $n * 2] = aten.slice.Tensor(self=%c, dim=1, start=0, end=9223372036854775807)
  %e: f32[3, $n * 2] = aten.expand.default(self=%d, size=[3, $n * 2])
  %f: f32[$n, 6] = aten.reshape.default(self=%e, shape=[$n, 6])
  %g: f32[$n, 6] = aten.view.default(self=%f, size=[$n, 6])
  %h: f32[2, $n * 2] = aten.slice.Tensor(self=%e, dim=0, start=0, end=2)
  %unread: f32[$n * 6] = aten.view.default(self=%a, size=[$n * 6])
  %sum: f32[$n, 6] = aten.add.Tensor(self=%g, other=%x)
  return %a, %g, %h, %sum
}
"""


def test_chains() -> None:
    program = parse_program(CHAINS)
    main = simplified(program.main)
    assert [op.results[0] for op in main.ops] == ["a", "b", "c", "g", "h", "sum"]
    assert {op.results[0]: op.operands for op in main.ops} == {
        "a": ("x",),
        "b": ("x",),
        "c": ("b",),
        "g": ("c",),
        "h": ("c",),
        "sum": ("g", "x"),
    }
    assert set(main.values) == {"x", "a", "b", "c", "g", "h", "sum"}


def test_results_are_equal() -> None:
    program = parse_program(CHAINS)
    x = torch.randn(5, 6)
    expected = emit(program, {})(x, 5)
    found = emit(program.with_main(simplified(program.main)), {})(x, 5)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_nothing_to_leave_out() -> None:
    program = parse_program(CHAINS)
    main = simplified(program.main)
    assert simplified(main).ops == main.ops
