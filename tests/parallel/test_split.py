"""A program in two halves: what is saved between them, and that nothing is lost."""

from __future__ import annotations

import pytest

from autopar.base.errors import VerificationError
from autopar.ir.program import Program
from autopar.ir.text import parse_program, print_program
from autopar.parallel.split import first_half, split

WHOLE = """program "step" serial

func main {
  parameter %w: f32[4, 4]
  input     %x: f32[2, 4]
  gradient  %tangent: f32[2, 4]
  %y: f32[2, 4]     = aten.mm.default(self=%x, mat2=%w)
  %kept: f32[2, 4]  = aten.sigmoid.default(self=%y)
  %out: f32[2, 4]   = aten.relu.default(self=%y)
  %turned: f32[4, 4] = aten.t.default(self=%w) phase=backward
  %scaled: f32[2, 4] = aten.mul.Tensor(self=%tangent, other=%kept) phase=backward
  %grad: f32[2, 4]  = aten.mm.default(self=%scaled, mat2=%turned) phase=backward
  return %out, %grad, %x
}
"""

FORWARD = """func main {
  parameter %w: f32[4, 4]
  input     %x: f32[2, 4]
  %y: f32[2, 4]    = aten.mm.default(self=%x, mat2=%w)
  %kept: f32[2, 4] = aten.sigmoid.default(self=%y)
  %out: f32[2, 4]  = aten.relu.default(self=%y)
  return %out, %w, %kept, %x
}"""

BACKWARD = """func main {
  parameter  %w: f32[4, 4]
  activation %kept: f32[2, 4]
  input      %x: f32[2, 4]
  gradient   %tangent: f32[2, 4]
  %turned: f32[4, 4] = aten.t.default(self=%w) phase=backward
  %scaled: f32[2, 4] = aten.mul.Tensor(self=%tangent, other=%kept) phase=backward
  %grad: f32[2, 4]   = aten.mm.default(self=%scaled, mat2=%turned) phase=backward
  return %grad, %x
}"""


def body(program: Program) -> str:
    """Returns the text of `main`."""
    text = print_program(program)
    return text[text.index("func main") :].strip()


def test_halves_are_joined_by_what_is_saved() -> None:
    halves = split(parse_program(WHOLE), ["out"], {"tangent"})
    assert halves.saved == ("w", "kept", "x")
    assert body(halves.forward) == FORWARD
    assert body(halves.backward) == BACKWARD


def test_the_first_half_alone_computes_only_what_is_returned() -> None:
    alone = first_half(parse_program(WHOLE), ["out"], {"tangent"})
    assert [op.results[0] for op in alone.main.ops] == ["y", "out"]
    assert alone.main.inputs == ("w", "x")


def test_outputs_that_wait_for_tangents_are_refused() -> None:
    with pytest.raises(VerificationError, match=r"forward pass waits.*\n.*%scaled"):
        split(parse_program(WHOLE), ["out", "grad"], {"tangent"})
