"""Which ops of a loop become one function."""

from __future__ import annotations

import pytest

from autopar.ir.program import MICROBATCH, Function, Op, Ref, Value
from autopar.partition.pipeline.bodies import bodies_of
from autopar.partition.pipeline.tasks import FORWARD, Task

LOOP = ((MICROBATCH, 4),)
TASKS = {"a": Task(0, 0, FORWARD), "b": Task(1, 0, FORWARD), "-": None}


def bodies(text: str) -> list[list[str]]:
    """Returns the bodies of ops that are written as `task result operands...`, one per line."""
    lines = [line.split() for line in text.strip().splitlines()]
    ops = tuple(
        Op("aten.cat.default", (("tensors", tuple(map(Ref, operands))),), (result,), loops=LOOP)
        for _, result, *operands in lines
    )
    names = ("x", *(result for _, result, *_ in lines))
    values = {name: Value(name, "f32", (2,)) for name in names}
    main = Function("main", ("x",), (names[-1],), values, ops)
    found = bodies_of(main, [TASKS[task] for task, *_ in lines])
    return [[ops[at].results[0] for at in body.ops] for body in found]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a p x\na q p\na r q", [["p", "q", "r"]]),
        # What the other one makes is there when it is called.
        ("a p x\nb q p\nb r q", [["p"], ["q", "r"]]),
        ("a p x\nb q p\na r x", [["p", "r"], ["q"]]),
        # It waits for the other one, which waits for it.
        ("a p x\nb q p\na r q", [["p"], ["q"], ["r"]]),
        # Each waits for something of the other, though no op waits for itself.
        ("a p x\nb q x\nb r p\na s q", [["p"], ["q", "r"], ["s"]]),
        # So it does by way of what is in no body.
        ("a p x\n- q p\na r q", [["p"], ["r"]]),
        ("a p x\n- q p\nb r q\n- s r\na t s\na u t", [["p"], ["r"], ["t", "u"]]),
    ],
)
def test_nothing_waits_for_itself(text: str, wanted: list[list[str]]) -> None:
    assert bodies(text) == wanted
