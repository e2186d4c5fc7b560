"""Parts of a program, changed and put together again."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.parts import parts_of, rejoined
from autopar.ir.text import parse_program

BOTH = """
program "" partitioned
mesh pp=2
input %x: f32[4]
%a: f32[4] on mesh[pp=0] = aten.tanh.default(self=%x) {on mesh[pp=0]}
%b: f32[4] on mesh[pp=1] = aten.tanh.default(self=%x) {on mesh[pp=1]}
%c: f32[4] on mesh[pp=0] = aten.sin.default(self=%a) {on mesh[pp=0]}
%d: f32[4] on mesh[pp=1] = aten.sin.default(self=%b) {on mesh[pp=1]}
%e: f32[4] on mesh[pp=0] = aten.cos.default(self=%a) {on mesh[pp=0]}
return %x
"""


def test_what_a_part_runs_earlier_is_earlier_in_the_whole() -> None:
    """As what the backward pass gathers anyway, where a copy reads it before."""
    program = parse_program(BOTH)
    parts = parts_of(program)
    a, c, e = parts[0].main.ops
    new = replace(c, results=("new",)).with_operands(["e"])
    values = {**parts[0].main.values, "new": replace(parts[0].main.values["c"], name="new")}
    ops = (a, e, new, c.with_operands(["new"]))
    first = parts[0].with_main(replace(parts[0].main, ops=ops, values=values))
    whole = rejoined(program, parts, [first, parts[1]])
    assert [op.results[0] for op in whole.main.ops] == ["a", "b", "e", "new", "c", "d"]
    assert parts_of(whole)[0].main.ops == ops
    assert parts_of(whole)[1] == parts[1]
