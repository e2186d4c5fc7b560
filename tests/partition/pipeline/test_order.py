"""The order of ops: by time, none before what it reads, and what is done is sent at once."""

from __future__ import annotations

import pytest

from autopar.ir import emitted
from autopar.ir.collectives import BROADCAST
from autopar.ir.program import Op, Ref
from autopar.partition.pipeline.order import in_order
from tests.partition.pipeline.models import Decoder, compiled

ROOM = emitted.empty((1,), "f32").kind


def op(result: str, *operands: str) -> Op:
    return Op("aten.stack.default", (("tensors", tuple(map(Ref, operands))),), (result,))


def test_ops_are_in_order_of_time_and_behind_what_they_read() -> None:
    ops = [op("a"), op("b", "a"), op("c"), op("d", "c", "b"), op("e")]
    times = [(3.0, True), (1.0, True), (2.0, True), (0.0, True), (3.0, False)]
    assert [ops[at].results[0] for at in in_order(ops, times)] == ["c", "e", "a", "b", "d"]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-h2"])
def test_what_is_done_is_sent_before_another_task_begins(schedule: str) -> None:
    step = compiled(Decoder(3), 5, mesh="pp=3", strategy=None, schedule=schedule)
    for program in step.deployment.programs:
        ops = program.main.ops
        made = {name: at for at, op in enumerate(ops) for name in op.results}
        for at, send in enumerate(ops):
            if send.kind == BROADCAST and send.operands[0] in made:
                others = {op.kind for op in ops[made[send.operands[0]] + 1 : at]}
                assert others <= {BROADCAST, ROOM}
