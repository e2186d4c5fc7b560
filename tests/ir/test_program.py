"""The classes of the IR: what they tell and how they are rewritten; rank tables."""

from __future__ import annotations

import pytest

from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.expr.expression import Coord
from autopar.ir.program import Op, Program, Ref, Value
from autopar.ir.text import parse_program
from tests.ir import programs

OP = Op(
    "aten.cat.default",
    (("tensors", (Ref("a"), Ref("b"), Ref("a"))), ("dim", 1), ("out", Ref("c"))),
    ("y",),
)


def test_operands_are_in_the_order_of_the_arguments_with_repetitions() -> None:
    assert OP.operands == ("a", "b", "a", "c")


def test_operands_are_replaced_position_by_position() -> None:
    changed = OP.with_operands(["p", "q", "r", "s"])
    assert changed.operands == ("p", "q", "r", "s")
    assert changed.arg("dim") == 1
    assert OP.operands == ("a", "b", "a", "c")


def test_arguments_are_replaced_in_place_and_new_ones_appended() -> None:
    changed = OP.with_args({"dim": 0, "offset": 3})
    assert [name for name, _ in changed.args] == ["tensors", "dim", "out", "offset"]
    assert (changed.arg("dim"), changed.arg("offset"), changed.arg("gone", 7)) == (0, 3, 7)


def test_who_produces_and_reads_a_value() -> None:
    main = parse_program(programs.COMPLETED).main
    assert {name: op.kind for name, op in main.producers().items()} == {
        "h": "aten.mm.default",
        "r": "aten.relu.default",
        "p": "aten.mm.default",
        "y": "aten.relu.default",
    }
    readers = {name: len(ops) for name, ops in main.consumers().items()}
    assert readers == {"x": 1, "w": 1, "v": 1, "h": 1, "r": 1, "p": 1, "y": 0}


def test_only_serial_values_have_a_global_shape() -> None:
    assert Value("x", "bf16", (2, 3)).global_shape == (2, 3)
    assert Value("x", "bf16", (2, 3)).itemsize == 2
    with pytest.raises(TypeError, match="%x has a local shape"):
        _ = Value("x", "f32", (Coord("tp"),)).global_shape


def test_a_rewrite_leaves_the_program_as_it_was() -> None:
    program = parse_program(programs.LOOP)
    main = parse_program("return").main
    changed = program.with_main(main)
    assert changed.main is main
    assert list(changed.functions) == list(program.functions)
    assert program.main is not main


def test_what_a_rank_table_tells() -> None:
    one, two = Program({}, name="one"), Program({}, name="two")
    ranks = (RankEntry(0, (0, 1), 3), RankEntry(1, (1, 0), 2))
    table = Deployment((one, two), ("dp", "tp"), ranks, {"all": ((1, 0),), "none": ()})
    assert table.world_size == 2
    assert table.program_of(1) is two
    assert table.coords_of(0) == {"dp": 0, "tp": 1}
    assert table.group_of("all", 0) == (1, 0)
    with pytest.raises(KeyError, match="rank 0 is in no list of group 'none'"):
        table.group_of("none", 0)
