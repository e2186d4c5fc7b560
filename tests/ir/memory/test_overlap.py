"""Which collectives are started, and where each is awaited."""

from __future__ import annotations

from autopar.ir.memory.overlap import Overlap, async_collectives, plan_overlap
from autopar.ir.memory.storage import Storage
from autopar.ir.memory.updates import plan_writes
from autopar.ir.program import Program
from autopar.ir.text import parse_program


def plan(program: Program, members: int = 2, *, in_place: bool = False) -> Overlap:
    main = program.main
    started = async_collectives(main, lambda op: members, lambda value: value.global_shape)
    storage = Storage(program, main, lambda op: op.results[0] in started)
    return plan_overlap(main, started, plan_writes(program, storage) if in_place else None)


READ = parse_program("""
program executable

func main {
  input %x: f32[4]
  input %e: f32[0]
  %s: f32[4] = comm.all_reduce(self=%x, monoid="sum", group="g")
  %g: f32[8] = comm.all_gather(self=%x, dim=0, size=8, group="g")
  %m: f32[4] = comm.all_reduce(self=%x, monoid="max", group="g")
  %z: f32[0] = comm.all_reduce(self=%e, monoid="sum", group="g")
  %b: f32[8] = barrier(operands=[%g])
  %t: f32[4] = aten.add.Tensor(self=%m, other=%s)
  %u: f32[4] = comm.all_reduce(self=%t, monoid="sum", group="g")
  %v: f32[8] = comm.all_gather(self=%x, dim=0, size=8, group="g")
  return %t, %b, %z, %u, %v
}
""")


def test_each_is_awaited_by_its_first_reader_or_at_the_end() -> None:
    """Of a maximum, of nothing, and of a gather that no op reads, the rank waits at once."""
    assert plan(READ) == Overlap({4: ("g",), 5: ("s",), 8: ("u",)}, {})


def test_alone_a_rank_waits_for_nobody() -> None:
    assert plan(READ, 1) == Overlap({}, {})


ALONE = parse_program("""
program executable

func main {
  input %x: f32[4]
  %a: f32[2] = comm.reduce_scatter(self=%x, dim=0, monoid="sum", group="g")
  %c: f32[4] = comm.broadcast(self=%x, source=0, group="g")
  %b: f32[2] = comm.reduce_scatter(self=%x, dim=0, monoid="sum", group="g")
  %d: f32[4] = comm.broadcast(self=%x, source=1, group="g")
  %e: f32[2] = aten.add.Tensor(self=%a, other=%b)
  return %e, %c, %d
}
""")


def test_the_next_of_a_kind_waits_for_the_one_before() -> None:
    assert plan(ALONE) == Overlap({2: ("a",), 3: ("c",), 4: ("b",), 5: ("d",)}, {})


STORED = parse_program("""
program executable

func main {
  parameter %w: f32[4]
  input %x: f32[4]
  %h: f32[] = aten.sum.default(self=%x)
  %l: f32[] = comm.all_reduce(self=%h, monoid="sum", group="g")
  %n: f32[4] = comm.all_reduce(self=%x, monoid="sum", group="g") phase=update
  %k: f32[4] = aten.neg.default(self=%x) phase=update
  alias %n -> %w
  return %l, %n, %k
}
""")


def test_what_is_looked_at_or_written_is_awaited_before() -> None:
    assert plan(STORED) == Overlap({4: ("l", "n")}, {})
    assert plan(STORED, in_place=True) == Overlap({}, {1: ("l",), 2: ("n",)})
