"""Collectives run until they are read, and sums over an operand that nobody else reads."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from autopar.ir.memory.storage import Storage
from autopar.ir.text import parse_program
from autopar.runtime.collectives.async_collectives import end_sum, start_sum
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.stepper import step
from autopar.runtime.execute.updates import InPlace

PROGRAM = """
program executable

func main {
  input %x: f32[4]
  %a: f32[4] = aten.neg.default(self=%x)
  %s: f32[4] = comm.all_reduce(self=%a, monoid="sum", group="all")
  %b: f32[4] = aten.exp.default(self=%x)
  %r: f32[4] = comm.all_reduce(self=%b, monoid="sum", group="all")
  %c: f32[4] = aten.add.Tensor(self=%b, other=%r)
  %d: f32[4] = aten.add.Tensor(self=%c, other=%s)
  %e: f32[4] = aten.exp.default(self=%d)
  %v: f32[2, 2] = aten.view.default(self=%e, size=[2, 2])
  %t: f32[2, 2] = comm.all_reduce(self=%v, monoid="sum", group="all")
  %f: f32[2, 2] = aten.neg.default(self=%t)
  %u: f32[4] = comm.all_reduce(self=%x, monoid="sum", group="all")
  %m: f32[4] = comm.all_reduce(self=%d, monoid="max", group="all")
  %n: f32[4] = comm.all_reduce(self=%d, monoid="sum", group="all")
  return %f, %u, %m, %s
}
"""
GROUP = Group("all", 2, 0, (0, 1), "virtual")


def module() -> fx.GraphModule:
    return emit(parse_program(PROGRAM), {"all": GROUP})


def test_a_sum_is_awaited_where_it_is_read_first() -> None:
    targets = [node.target for node in module().graph.nodes if node.op == "call_function"]
    words = [getattr(target, "_opname", None) or target.__name__ for target in targets]
    assert words == [
        *("neg", "start_sum", "exp", "start_sum", "end_sum", "add", "end_sum", "add", "exp"),
        "_view",
        *("start_sum", "end_sum", "neg", "start_sum", "all_reduce"),
        *("start_sum", "end_sum", "end_sum"),
    ]


def test_a_sum_is_written_over_what_nobody_else_reads() -> None:
    started = [node for node in module().graph.nodes if node.target is start_sum]
    # %b is read again, %x is the caller's, and of %d an output might be a view.
    assert [node.args[2] for node in started] == [True, False, True, False, False]


SENT = """
program executable

func main {
  input %x: f32[4]
  %a: f32[4] = aten.neg.default(self=%x)
  %v: f32[2, 2] = aten.view.default(self=%a, size=[2, 2])
  %g: f32[8] = comm.all_gather(self=%a, dim=0, size=8, group="all")
  %s: f32[2, 2] = comm.all_reduce(self=%v, monoid="sum", group="all")
  %t: f32[2, 2] = aten.neg.default(self=%s)
  %h: f32[8] = aten.neg.default(self=%g)
  %b: f32[8] = aten.exp.default(self=%h)
  %k: f32[16] = comm.all_gather(self=%b, dim=0, size=16, group="all")
  %l: f32[16] = aten.neg.default(self=%k)
  %r: f32[8] = comm.all_reduce(self=%b, monoid="sum", group="all")
  %u: f32[8] = aten.neg.default(self=%r)
  return %t, %h, %l, %u
}
"""


def test_a_sum_is_not_written_over_what_another_collective_is_sending() -> None:
    graph = emit(parse_program(SENT), {"all": GROUP}).graph
    started = [node for node in graph.nodes if node.target is start_sum]
    # %k has arrived when %b is summed; %g hasn't when a view of %a is.
    assert [node.args[2] for node in started] == [False, True]


def test_the_virtual_mesh_sees_each_sum_once() -> None:
    x = torch.randn(4)
    steps = step(module(), (x,), None)
    request = next(steps)
    met = [request.op.results[0]]
    try:
        while True:
            request = steps.send(2 * request.tensor)
            met.append(request.op.results[0])
    except StopIteration as finished:
        f, u, _, s = finished.value
    assert met == ["s", "r", "t", "u", "m", "n"]
    torch.testing.assert_close(u, 2 * x)
    torch.testing.assert_close(s, -2 * x)
    torch.testing.assert_close(f.flatten(), -2 * (3 * x.exp() - 2 * x).exp())


MOVES = """
program executable

func main {
  input %x: f32[2]
  input %y: f32[2, 4]
  %g: f32[4] = comm.all_gather(self=%x, dim=0, size=4, group="all")
  %a: f32[2, 4] = aten.neg.default(self=%y)
  %s: f32[2, 2] = comm.reduce_scatter(self=%a, dim=1, monoid="sum", group="all")
  %b: f32[2, 4] = aten.exp.default(self=%y)
  %t: f32[2, 2] = comm.reduce_scatter(self=%b, dim=1, monoid="sum", group="all")
  %h: f32[4] = aten.exp.default(self=%g)
  %u: f32[2, 2] = aten.add.Tensor(self=%s, other=%t)
  %w: f32[4] = comm.all_gather(self=%x, dim=0, size=4, group="all")
  return %h, %u, %w
}
"""


def test_gathers_and_scatters_run_until_they_are_read() -> None:
    """Of scatters one at a time; what only the caller reads can't wait for anybody."""
    found = emit(parse_program(MOVES), {"all": GROUP})
    targets = [node.target for node in found.graph.nodes if node.op == "call_function"]
    words = [getattr(target, "_opname", None) or target.__name__ for target in targets]
    assert words == [
        *("start_gather", "neg", "start_scatter", "exp", "end_scatter", "start_scatter"),
        *("end_gather", "exp", "end_scatter", "add", "all_gather"),
    ]


def test_what_is_sent_is_read_until_somebody_waits() -> None:
    """So it isn't overwritten before: %x may be sent until %h is computed, by op 5."""
    program = parse_program(MOVES)
    without = replace(program.main, ops=program.main.ops[:-1], outputs=("h", "u"))
    assert Storage(program, without, lambda op: op.results == ("g",)).last["x"] == 5


STORED = """
program executable

func main {
  parameter %w: f32[4]
  input %x: f32[4]
  %h: f32[4] = aten.mul.Tensor(self=%w, other=%x)
  %l: f32[] = aten.sum.default(self=%h)
  %s: f32[4] = comm.all_reduce(self=%w, monoid="sum", group="all")
  %n: f32[4] = aten.sub.Tensor(self=%w, other=%x) phase=update
  alias %n -> %w
  return %l, %s, %n
}
"""


def test_what_is_sent_and_read_by_nobody_is_overwritten_at_the_end() -> None:
    """A short sum sends the memory of %w itself."""
    found = emit(
        parse_program(STORED), {"all": GROUP}, in_place=InPlace(lambda loss, refusal: None)
    )
    targets = [node.target for node in found.graph.nodes if node.op == "call_function"]
    copy = torch.ops.aten.copy_.default
    assert targets.index(start_sum) < targets.index(end_sum) < targets.index(copy)
    assert torch.ops.aten.sub_.Tensor not in targets
