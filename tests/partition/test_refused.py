"""What partition refuses, and how it says so."""

from __future__ import annotations

import pytest

from autopar.base.errors import VerificationError
from autopar.ir.text import parse_program
from tests.partition.texts import CALLS, PARTITION, partition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "%y: f32[4] undistributed = aten.relu.default(self=%x) {i0: 4@tp}",
            "1 values have no layout: %y; complete it first",
        ),
        (
            "%y: f32[4@tp] = aten.relu.default(self=%x)",
            "has no distribution; partition needs a completed and legalized program",
        ),
        (
            "%y: f32[4@tp] = aten.relu.default(self=%x) {i0: 4@tp; body other}",
            "still has the body 'other'",
        ),
        (
            "%y: f32[4@tp] = aten.relu.default(self=%x) {row: 4@tp}",
            "its rule i0 -> i0 has no factor 'row'",
        ),
        (
            "%y: f32[4@tp] = vendor.op.default(self=%x) {i0: 4@tp}",
            "has no rule, so it can't be split",
        ),
        (
            "%y: f32[4@tp] = aten.cumsum.default(self=%x, dim=0) {i0: 4@tp}",
            "factor 'i0' of its rule i0 -> i0 must not be split",
        ),
        (
            '%y: f32[4@tp] = call(callee="nowhere", operands=[%x]) {}',
            "there is no function @nowhere",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_op(text: str, message: str) -> None:
    program = parse_program(f'mesh tp=2\ninput %x: f32[4@tp]\n{text} loc("model.py", 5)\nreturn %y')
    with pytest.raises(VerificationError) as error:
        PARTITION(program)
    assert message in str(error.value)
    if "values have no layout" not in message:
        assert 'loc("model.py", 5)' in str(error.value)


def test_a_program_is_partitioned_once() -> None:
    program = partition("mesh tp=2\ninput %x: f32[4@tp]\nreturn %x")
    with pytest.raises(VerificationError, match="it is partitioned already"):
        PARTITION(program)


def test_a_reshard_that_is_impossible_names_the_op() -> None:
    text = CALLS.replace("parameter %b: f32[8@tp, 8]", "parameter %b: f32[6@tp, 8]")
    with pytest.raises(VerificationError) as error:
        PARTITION(parse_program(text))
    assert "%y = call" in str(error.value)
    assert "%b: the shapes differ: [6, 8] and [8, 8]" in str(error.value)
