"""Partition of functions, calls and loops."""

from __future__ import annotations

from tests.partition.texts import CALLS, partition, short


def test_a_function_is_partitioned_once_and_called_in_its_layouts() -> None:
    program = partition(CALLS)
    assert short(program) == [
        "h = call x a",
        "b.1 = comm.all_to_all b",
        "y = call h b.1",
    ]
    assert short(program, "layer") == [
        "m = aten.mm.default x w",
        "z.1 = aten.relu.default m",
        "z = comm.all_gather z.1",
    ]


def test_a_function_that_was_not_completed_runs_whole_on_every_rank() -> None:
    program = partition("""
        program "" serial
        mesh tp=2
        func main {
          input %x: f32[4@tp, 8]
          %y: f32[4, 8] replicated = call(callee="whole", operands=[%x]) {}
          return %y
        }
        func whole {
          input %x: f32[4, 8]
          %z: f32[4, 8] = aten.relu.default(self=%x)
          return %z
        }
        """)
    assert short(program) == ["x.1 = comm.all_gather x", "y = call x.1"]
    assert short(program, "whole") == ["z = aten.relu.default x"]


def test_repeat_slices_stacked_operands_in_the_layouts_of_its_body() -> None:
    program = partition("""
        program "" serial
        mesh tp=2
        func main {
          input %x: f32[4@tp, 8]
          parameter %ws: f32[3, 8, 8@tp]
          input %c: f32[8@tp]
          %y: f32[4, 8] replicated, %all: f32[3, 4, 8@tp] =
            repeat(body="layer", trip=3, carried=[%x], sliced=[%ws], invariant=[%c]) {}
          return %y, %all
        }
        func layer {
          input %x: f32[4, 8] replicated
          input %w: f32[8, 8@tp]
          input %c: f32[8] replicated
          %m: f32[4, 8@tp] = aten.mm.default(self=%x, mat2=%w) {n: 8@tp}
          %s: f32[4, 8@tp] = aten.add.Tensor(self=%m, other=%c) {i1: 8@tp}
          %z: f32[4, 8] replicated = aten.relu.default(self=%s) {i1: 8@tp}
          return %z, %m
        }
        """)
    assert short(program) == [
        "x.1 = comm.all_gather x",
        "c.1 = comm.all_gather c",
        "y, all = repeat x.1 ws c.1",
    ]
    assert program.main.values["ws"].shape == (3, 8, 4)
    assert program.main.values["all"].shape == (3, 4, 4)
