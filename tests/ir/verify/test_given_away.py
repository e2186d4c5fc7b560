"""What a call writes over, as an alias of its function says, nobody reads any more."""

from __future__ import annotations

import pytest

from autopar.base.errors import VerificationError
from autopar.ir.text import parse_program
from autopar.ir.verify import verify_structure

PROGRAM = """
func main {
  input %x: f32[4]
  %zero: f32[4] = aten.neg.default(self=%x)
  %one: f32[4] = call(callee="f", operands=[%zero, %x])
  %two: f32[4] = call(callee="f", operands=[%one, %x])
  return %two
}
func f {
  input %old: f32[4]
  input %part: f32[4]
  %new: f32[4] = aten.add.Tensor(self=%old, other=%part)
  alias %new -> %old
  return %new
}
"""


def test_it_is_handed_from_call_to_call() -> None:
    verify_structure(parse_program(PROGRAM))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("operands=[%one, %x]", "operands=[%zero, %x]", "one that a call has written over"),
        ("operands=[%zero, %x]", "operands=[%x, %zero]", "one that is kept"),
        ("operands=[%zero, %x]", "operands=[%zero, %zero]", "one that is kept"),
    ],
)
def test_others_may_not_read_it(old: str, new: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_structure(parse_program(PROGRAM.replace(old, new)))
