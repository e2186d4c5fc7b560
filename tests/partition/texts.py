"""Partitions programs that are given as text."""

from __future__ import annotations

import textwrap

from autopar.cost import Cluster
from autopar.ir.program import Op, Program
from autopar.ir.text import parse_program, print_program
from autopar.ir.verify import verify_structure
from autopar.partition import Partition

PARTITION = Partition(Cluster.load("h100"))


def partition(text: str) -> Program:
    """Partitions a program, which must then verify."""
    program = PARTITION(parse_program(text))
    verify_structure(program)
    return program


def check(before: str, after: str) -> None:
    """Fails unless partition turns one text into the other, line breaks aside."""
    program = partition(before)
    expected = parse_program('program "" partitioned\n' + textwrap.dedent(after))
    assert program == expected, print_program(program)


def ops(program: Program, function: str = "main") -> list[Op]:
    """The ops of a function."""
    return list(program.functions[function].ops)


def short(program: Program, function: str = "main") -> list[str]:
    """Each op as `result = kind operands`."""
    return [
        f"{', '.join(op.results)} = {op.kind} {' '.join(op.operands)}"
        for op in ops(program, function)
    ]


CALLS = """
    program "" serial
    mesh tp=2
    func main {
      input %x: f32[4, 8] replicated
      parameter %a: f32[8, 8@tp]
      parameter %b: f32[8@tp, 8]
      %h: f32[4, 8] replicated = call(callee="layer", operands=[%x, %a]) {}
      %y: f32[4, 8] replicated = call(callee="layer", operands=[%h, %b]) {}
      return %y
    }
    func layer {
      input %x: f32[4, 8] replicated
      input %w: f32[8, 8@tp]
      %m: f32[4, 8@tp] = aten.mm.default(self=%x, mat2=%w) {n: 8@tp}
      %z: f32[4, 8] replicated = aten.relu.default(self=%m) {i1: 8@tp}
      return %z
    }
    """
"""A layer that is called twice, and finds its weight in two layouts."""
