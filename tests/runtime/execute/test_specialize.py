"""Specialization: expressions resolved, and nothing left to compute on empty tensors."""

from __future__ import annotations

import pytest

from autopar.base.errors import RuntimeFailure
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.text import parse_program, print_program
from autopar.runtime.execute.specialize import (
    code_expressions,
    code_key,
    specialize,
    specialize_functions,
)

UNEVEN = """
program "uneven" executable
func main {
  input %x: f32[max(0, min(2, 3 - tp * 2)), 4] box [3[min(3, tp * 2); max(0, min(2, 3 - tp * 2))], 4]
  %m: f32[4] = aten.amax.default(self=%x, dim=[0]) plan(identity=max)
  %s: f32[4] = aten.sum.dim_IntList(self=%x, dim=[0])
  %n: f32[max(0, min(2, 3 - tp * 2)), 4] = aten.neg.default(self=%x)
  %g: f32[3, 4] = comm.all_gather(self=%n, dim=0, size=3, group="tp")
  %c: f32[4] = autopar.to_partial(self=%m, monoid="max", index=tp)
  return %m, %s, %g, %c
}
"""  # noqa: E501


def ops(tp: int) -> list[str]:
    text = print_program(specialize(parse_program(UNEVEN), {"tp": tp}))
    lines = (line.strip() for line in text.splitlines() if " = " in line)
    return [" ".join(line.split()) for line in lines]


def test_a_rank_with_elements_computes() -> None:
    assert ops(1)[:4] == [
        "%m: f32[4] = aten.amax.default(self=%x, dim=[0]) plan(identity=max)",
        "%s: f32[4] = aten.sum.dim_IntList(self=%x, dim=[0])",
        "%n: f32[1, 4] = aten.neg.default(self=%x)",
        '%g: f32[3, 4] = comm.all_gather(self=%n, dim=0, size=3, group="tp")',
    ]


def test_a_rank_without_elements_gets_constants() -> None:
    assert ops(2) == [
        "%m: f32[4] = aten.full.default(size=[4], fill_value=-inf, dtype=f32)",
        "%s: f32[4] = aten.sum.dim_IntList(self=%x, dim=[0])",
        "%n: f32[0, 4] = aten.full.default(size=[0, 4], fill_value=0, dtype=f32)",
        '%g: f32[3, 4] = comm.all_gather(self=%n, dim=0, size=3, group="tp")',
        "%c: f32[4] = aten.full.default(size=[4], fill_value=-inf, dtype=f32)",
    ]


def test_each_result_gets_the_identity_of_its_own_reduction() -> None:
    text = """
program "extrema" executable
func main {
  input %x: f32[max(0, min(2, 3 - tp * 2)), 4] box [3[min(3, tp * 2); max(0, min(2, 3 - tp * 2))], 4]
  %a: f32[4], %b: f32[4] = aten.aminmax.default(self=%x, dim=0) plan(identity="min,max")
  return %a, %b
}
"""  # noqa: E501
    lines = print_program(specialize(parse_program(text), {"tp": 2})).splitlines()
    assert [" ".join(line.split()) for line in lines if " = " in line] == [
        "%a: f32[4] = aten.full.default(size=[4], fill_value=inf, dtype=f32)",
        "%b: f32[4] = aten.full.default(size=[4], fill_value=-inf, dtype=f32)",
    ]


def test_an_operand_that_nobody_has_elements_of_stops_no_op() -> None:
    text = """
program "unused" executable
func main {
  input %x: f32[max(0, min(2, 3 - tp * 2)), 4] box [3[min(3, tp * 2); max(0, min(2, 3 - tp * 2))], 4]
  input %n: f32[0]
  %m: f32[4] = user.op.default(self=%x, unused=%n) plan(identity=sum)
  return %m
}
"""  # noqa: E501
    for tp, kind in ((1, "user.op.default"), (2, "aten.full.default")):
        (function,) = specialize(parse_program(text), {"tp": tp}).functions.values()
        assert [op.kind for op in function.ops] == [kind]


OPEN = """
program "open" executable
size $n = 0..9 planned 4
func main {
  input %x: f32[max(0, min(2, $n - tp * 2)), 4] box [$n[min($n, tp * 2); max(0, min(2, $n - tp * 2))], 4]
  %a: f32[4] = aten.amax.default(self=%x, dim=[0]) plan(of_nothing=max, identity=max)
  %b: f32[4] = aten.mean.dim(self=%x, dim=[0]) plan(identity=sum)
  return %a, %b
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("n", "tp", "kinds"),
    [
        (0, 0, ["aten.full.default", "aten.mean.dim"]),
        (0, 1, ["aten.full.default", "aten.mean.dim"]),
        (2, 0, ["aten.amax.default", "aten.mean.dim"]),
        (2, 1, ["aten.full.default", "aten.full.default"]),
        (3, 1, ["aten.amax.default", "aten.mean.dim"]),
    ],
)
def test_of_what_nobody_has_ops_make_what_one_device_does(
    n: int, tp: int, kinds: list[str]
) -> None:
    program, sizes = parse_program(OPEN), {"n": n}
    for specialized in (
        specialize(at_sizes(program, sizes), {"tp": tp}),
        specialize_functions(program, {"tp": tp}, sizes),
    ):
        assert [op.kind for op in specialized.main.ops] == kinds


def test_the_first_of_an_axis_keeps_what_becomes_partial() -> None:
    assert ops(0)[-1] == "%c: f32[4] = aten.alias.default(self=%m)"


def test_boxes_are_resolved_too() -> None:
    (port,) = specialize(parse_program(UNEVEN), {"tp": 1}).signature.inputs
    assert (port.box[0][0].start, port.box[0][0].length) == (2, 1)


def test_a_box_that_is_no_part_of_its_tensor_is_an_error() -> None:
    odd = parse_program("program executable input %x: f32[2] box [4[tp * 2; 2]] return")
    assert specialize(odd, {"tp": 1}).signature.inputs[0].box[0][0].start == 2
    with pytest.raises(RuntimeFailure, match="a rank's part of 4 elements is 2 from 4 on, which"):
        specialize(odd, {"tp": 2})


def test_ranks_with_equal_expressions_share_a_key() -> None:
    program = parse_program(UNEVEN.replace("index=tp", "index=1"))
    keys = [code_key(code_expressions(program), {"tp": tp}) for tp in range(4)]
    assert len(set(keys)) == 3
    assert keys[2] == keys[3]


def test_an_unknown_axis_is_an_error() -> None:
    with pytest.raises(RuntimeFailure, match=r"'uneven' depends on axis 'tp'.*\['dp'\]"):
        specialize(parse_program(UNEVEN), {"dp": 0})
