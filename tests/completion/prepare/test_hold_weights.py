"""What iterations read of weights is held in front of their loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.completion.prepare.hold_weights import hold_weights
from autopar.ir.ops.loops import HOLD, REDUCE, TAKE
from autopar.ir.program import MICROBATCH, Function, Loops, Op, Program, Ref
from autopar.ir.unroll import unrolled
from tests.completion.networks import Network


def looped(*, loop: str = "head", weights: int = 1, rows: int = 8) -> Program:
    """Returns products of the parts of an input with weights, and their sum."""
    net = Network()
    x, width = net.input("x", rows, 8), 8
    given = [net.weight(f"w{number}", width, width) for number in range(weights)]
    part = net.op(TAKE, (rows // 2, 8), "part", self=Ref(x), trip=2, loop=loop)
    for weight in given:
        part = net.mm(part, net.permute(weight, 1, 0))
    total = net.op(REDUCE, (rows // 2, 8), "total", self=Ref(part), monoid="sum")
    program = net.program(total)
    loops = ((loop, 2),)
    ops = (op if op.kind == TAKE else _inside(op, loops) for op in program.main.ops)
    return program.with_main(replace(program.main, ops=tuple(ops)))


def _inside(op: Op, loops: Loops) -> Op:
    return replace(op, loops=loops) if op.kind != "aten.permute.default" else op


def held(function: Function) -> list[str]:
    """Returns what is held."""
    return [op.operands[0] for op in function.ops if op.kind == HOLD]


def test_what_is_made_of_weights_alone_is_held() -> None:
    main = hold_weights(looped().main)
    (hold,) = (op for op in main.ops if op.kind == HOLD)
    (product,) = (op for op in main.ops if op.kind == "aten.mm.default")
    assert hold.loops == ()
    assert hold.arg("loop") == "head"
    assert product.operands[1] == hold.results[0]


def test_it_is_done_once() -> None:
    main = hold_weights(looped().main)
    assert hold_weights(main) == main


@pytest.mark.parametrize(("rows", "count"), [(64, 4), (2, 0)])
def test_few_weights_are_held_beside_what_an_iteration_makes(rows: int, count: int) -> None:
    assert len(held(hold_weights(looped(weights=4, rows=rows).main))) == count


def test_microbatches_hold_nothing() -> None:
    main = looped(loop=MICROBATCH).main
    assert hold_weights(main) is main


def test_iterations_told_apart_read_what_there_is() -> None:
    program = looped()
    again = unrolled(program.with_main(hold_weights(program.main)))
    assert again == unrolled(program)
