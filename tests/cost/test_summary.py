"""What a rank's program is said to do."""

from __future__ import annotations

import pytest

from autopar.cost import Cluster
from autopar.cost.summary import CollectiveCount, summarize_rank
from autopar.ir.program import Program
from autopar.ir.text import parse_program
from autopar.partition import Partition

TEXT = """
    program "" serial
    mesh dp=2, tp=4
    func main {
      input %x: f32[10@dp, 16]
      parameter %up: f32[16, 6@tp]
      parameter %down: f32[6@tp, 16]
      %y: f32[10@dp, 16] = repeat(body="layer", trip=3, carried=[%x], sliced=[],
        invariant=[%up, %down]) {}
      return %y
    }
    func layer {
      input %x: f32[10@dp, 16]
      input %up: f32[16, 6@tp]
      input %down: f32[6@tp, 16]
      %h: f32[10@dp, 6@tp] = aten.mm.default(self=%x, mat2=%up) {m: 10@dp, n: 6@tp}
      %p: f32[10@dp, 16] sum@tp = aten.mm.default(self=%h, mat2=%down) {m: 10@dp, k: 6@tp}
      %z: f32[10@dp, 16] = aten.relu.default(self=%p) {i0: 10@dp}
      return %z
    }
    """


@pytest.fixture(scope="module")
def program() -> Program:
    return Partition(Cluster.load("cpu"))(parse_program(TEXT))


def test_what_is_repeated_counts_each_time(program: Program) -> None:
    summary = summarize_rank(program, {"dp": 0, "tp": 0})
    assert summary.collectives == (CollectiveCount("all_reduce", "tp", 3, 3 * 5 * 16 * 4),)
    assert summary.flops == 3 * (2 * (5 * 16 * 2) * 2)


def test_the_last_rank_holds_and_computes_least(program: Program) -> None:
    first, last = (summarize_rank(program, {"dp": dp, "tp": tp}) for dp, tp in ((0, 0), (1, 3)))
    assert first.weight_bytes == 2 * 16 * 2 * 4
    assert (last.weight_bytes, last.flops) == (0, 0)
