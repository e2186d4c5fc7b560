"""Where a part of a dimension goes: sizes that are planned alike are told apart."""

from __future__ import annotations

import pytest

from autopar.completion.presets.marks import Stretch, factor_of
from autopar.ir.expr.expression import Size, multiply
from autopar.ir.ops import rule_of
from autopar.ir.text import parse_program

FLAT = """
    mesh a=2
    size $b = 0.. planned {b}
    size $l = 0.. planned {l}
    input %x: f32[$b, $l, 8]
    %y: f32[$b * $l, 8] = aten.view.default(self=%x, size=[$b * $l, 8])
    return %y
"""


@pytest.mark.parametrize(("b", "l"), [(8, 8), (1, 1), (1, 8), (8, 1), (0, 4), (4, 0)])
def test_a_batch_and_a_length_that_lie_in_one_dimension(b: int, l: int) -> None:  # noqa: E741
    program = parse_program(FLAT.format(b=b, l=l))
    rule = rule_of(program.main.ops[0], program.main.values)
    assert rule is not None
    batch, length = Size("b", planned=b), Size("l", planned=l)
    (first,), (second,), _ = rule.operands[0]
    for stretch, factor in ((Stretch(0, length, batch), first), (Stretch(0, 1, length), second)):
        found = factor_of(rule, rule.results[0], stretch)
        assert found is not None
        assert found[0] == factor
        assert rule.sizes[factor] == stretch.size
    whole = factor_of(rule, rule.results[0], Stretch(0, 1, multiply(batch, length)))
    assert whole is not None
    assert whole[0] == first
