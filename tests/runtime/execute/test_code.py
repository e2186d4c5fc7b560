"""Code for any sizes computes what code for these sizes does, and is generated a few times."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.program import Program
from autopar.ir.text import parse_program, print_program
from autopar.runtime.execute.code import Code, Forward
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize

BLOCK = "max(0, min(($n + 1) // 2, $n - tp * (($n + 1) // 2)))"
UNEVEN = f"""
program "uneven" executable
size $m = 1..9 planned 4
size $n = 1..64 planned 8

func main {{
  input %x: f32[{BLOCK}, $m] box [$n[min($n, tp * (($n + 1) // 2)); {BLOCK}], $m]
  %a: f32[$m] = aten.amax.default(self=%x, dim=[0]) plan(identity=max)
  %s: f32[$m] = aten.sum.dim_IntList(self=%x, dim=[0])
  %f: f32[{BLOCK}, $m, 2] = aten.full.default(size=[{BLOCK}, $m, 2], fill_value=3, dtype=f32)
  %v: f32[{BLOCK} * $m] = aten.view.default(self=%x, size=[{BLOCK} * $m])
  %e: f32[$m, 3] = aten.new_full.default(self=%x, size=[$m, 3], fill_value=$n)
  %g: f32[$m, 2] = aten.sum.dim_IntList(self=%f, dim=[0])
  %t: f32[] = aten.sum.default(self=%v)
  return %a, %s, %g, %t, %e
}}
"""

NESTED = """
program "nested" executable
size $n = 0..64 planned 8

func main {
  input %x: f32[3, $n]
  input %w: f32[$n]
  %c: f32[$n] = call(callee="twice", operands=[%w])
  %a: f32[$n], %s: f32[3, $n] = repeat(trip=3, body="step", carried=[%c], sliced=[%x], invariant=[%w])
  return %a, %s
}
func twice {
  input %y: f32[$n]
  %z: f32[$n] = aten.mul.Tensor(self=%y, other=$n)
  return %z
}
func step {
  input %a: f32[$n]
  input %b: f32[$n]
  input %w: f32[$n]
  %c: f32[$n] = aten.add.Tensor(self=%a, other=%b)
  %d: f32[$n] = aten.mul.Tensor(self=%w, other=$n + 1)
  return %c, %d
}
"""  # noqa: E501


def code_of(text: str, coords: dict[str, int]) -> tuple[Program, Code, list[fx.GraphModule]]:
    """Returns a program, its code, and what of it has been generated."""
    program, made = parse_program(text), list[fx.GraphModule]()

    def generate(concrete: Program) -> Forward:
        made.append(emit(concrete, {}))
        return made[-1].forward

    return program, Code(program, coords, generate), made


def inputs_of(program: Program) -> list[torch.Tensor]:
    return [torch.randn(program.main.values[name].known_shape) for name in program.main.inputs]


@pytest.mark.parametrize("tp", [0, 1])
def test_ranks_compute_what_they_do_at_each_size(tp: int) -> None:
    program, code, made = code_of(UNEVEN, {"tp": tp})
    for sizes in ((n, m) for n in (8, 1, 2, 3, 7, 64) for m in (1, 4, 9)):
        known = dict(zip(("n", "m"), sizes, strict=True))
        concrete = specialize(at_sizes(program, known), {"tp": tp})
        inputs = inputs_of(concrete)
        expected, found = emit(concrete, {}).forward(*inputs), code.at(known)(*inputs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(made) == 1 + tp


def test_functions_that_are_called_know_the_sizes() -> None:
    program, code, made = code_of(NESTED, {})
    for n in (8, 0, 1, 5):
        concrete = specialize(at_sizes(program, {"n": n}), {})
        inputs = inputs_of(concrete)
        expected, found = emit(concrete, {}).forward(*inputs), code.at({"n": n})(*inputs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(made) == 2


def test_a_program_without_open_sizes_has_one_code() -> None:
    program = at_sizes(parse_program(UNEVEN), {"n": 7, "m": 3})
    _, code, made = code_of(print_program(program), {"tp": 0})
    assert code.at({}) is code.at({})
    assert len(made) == 1
