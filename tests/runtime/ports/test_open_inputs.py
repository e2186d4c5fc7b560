"""Sizes of calls: from inputs, within their ranges, and the same everywhere."""

from __future__ import annotations

import pytest
import torch

from autopar.base.errors import InvalidInputError
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.runtime.ports.open_inputs import serial_for, sizes_of_inputs
from autopar.runtime.ports.ports import check_inputs

TEXT = """
size $batch = 1..8 planned 4
size $length = 0..

func main {
  input %x: f32[$batch, $length]
  input %y: f32[$batch]
  return %x
}
"""


@pytest.fixture(scope="module")
def program() -> Program:
    return parse_program(TEXT)


def test_they_follow_from_inputs(program: Program) -> None:
    inputs = {"x": torch.zeros(3, 5), "y": torch.zeros(3)}
    assert sizes_of_inputs(program, inputs) == {"batch": 3, "length": 5}
    assert serial_for(program, inputs).main.values["x"].shape == (3, 5)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((9, 5), 9, "dimension 0 of input 'x' is 9; batch is at least 1 and at most 8"),
        ((0, 5), 0, "dimension 0 of input 'x' is 0; batch is at least 1 and at most 8"),
        (
            (3, 5),
            2,
            "dimension 0 of input 'y' is 2, but dimension 0 of input 'x' is 3; both are batch",
        ),
    ],
)
def test_what_contradicts_is_refused_by_name(
    program: Program, x: tuple[int, ...], y: int, message: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        sizes_of_inputs(program, {"x": torch.zeros(x), "y": torch.zeros(y)})
    assert message in str(refused.value)


def test_what_is_missing_or_has_another_rank_is_refused_as_of_any_program(
    program: Program,
) -> None:
    given = {"x": torch.zeros(3), "z": torch.zeros(3)}
    with pytest.raises(InvalidInputError) as refused:
        check_inputs(serial_for(program, given), given)
    text = str(refused.value)
    assert "there is no input 'z'" in text
    assert "input 'y' is missing" in text
    assert "input 'x' is f32[3]" in text


def test_what_is_no_plain_tensor_is_refused_as_of_any_program(program: Program) -> None:
    given = {"x": torch.eye(3).to_sparse(), "y": torch.zeros(3)}
    with pytest.raises(InvalidInputError, match="input 'x' is a tensor of the layout sparse"):
        check_inputs(serial_for(program, given), given)
