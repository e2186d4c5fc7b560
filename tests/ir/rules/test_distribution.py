"""What follows from a rule and a choice: layouts around the op, local arguments, points."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autopar.ir.expr.expression import Coord, Expr, IntExpr, evaluate
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg, OpDist
from autopar.ir.rules.distribution import (
    consumed,
    local_args,
    local_points,
    produced,
    replicated,
    serial_points,
    shard_call,
    split_factors,
)
from autopar.ir.rules.local_arg import Offset, Size, Sizes
from autopar.ir.rules.rule import SAME, Body, OpCall, Rule, TensorType, make_rule
from autopar.ir.text import parse_program

MESH = ProcessMesh.of_shape((2, 4), ("dp", "tp"))
MM = OpCall(
    "aten.mm.default",
    {},
    (TensorType((8, 12), "f32"), TensorType((12, 10), "f32")),
    (TensorType((8, 10), "f32"),),
)


def choice(text: str) -> OpDist:
    """The choice that `{text}` behind an op is."""
    op = parse_program(f"mesh dp=2, tp=4 some.op() {{{text}}} return").main.ops[0]
    assert op.dist is not None
    return op.dist


def around(rule: Rule, dist: OpDist) -> str:
    """The layouts of operands and results, as text."""
    operands = [str(consumed(rule, dist, at)) for at in range(len(rule.operands))]
    results = [str(produced(rule, dist, at)) for at in range(len(rule.results))]
    return f"{', '.join(operands)} -> {', '.join(results)}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "[8, 12], [12, 10] -> [8, 10]"),
        ("m: 8@dp", "[8@dp, 12], [12, 10] -> [8@dp, 10]"),
        ("m: 8@dp, n: 10@tp", "[8@dp, 12], [12, 10@tp] -> [8@dp, 10@tp]"),
        ("k: 12@tp", "[8, 12@tp], [12@tp, 10] -> [8, 10] sum@tp"),
        ("k: 12@(dp,tp)", "[8, 12@(dp,tp)], [12@(dp,tp), 10] -> [8, 10] sum@dp sum@tp"),
        ("k: (3)(4@tp)", "[8, (3)(4@tp)], [(3)(4@tp), 10] -> [8, 10] sum@tp"),
        ("m: 8@dp; pending sum@tp(1)", "[8@dp, 12], [12, 10] sum@tp -> [8@dp, 10] sum@tp"),
        ("k: 12@tp; pending sum@dp(0)", "[8, 12@tp] sum@dp, [12@tp, 10] -> [8, 10] sum@dp sum@tp"),
    ],
)
def test_layouts_around_a_matrix_product(text: str, expected: str) -> None:
    rule = make_rule("m k, k n -> m n", MM, reduce={"k": "sum"})
    assert around(rule, choice(text)) == expected


def test_compound_dimensions_consist_of_their_factors() -> None:
    call = OpCall("view", {}, (TensorType((24, 5), "f32"),), (TensorType((6, 4, 5), "f32"),))
    rule = make_rule("(b s) d -> b s d", call)
    assert around(rule, choice("b: 6@dp")) == "[24@dp, 5] -> [6@dp, 4, 5]"
    assert around(rule, choice("s: 4@tp")) == "[(6)(4@tp), 5] -> [6, 4@tp, 5]"
    # Blocks of 2 of 6 over 4 processes, the last one empty: 3 blocks of 8 of 24.
    assert around(rule, choice("b: 6@tp")) == "[(3@tp)(8), 5] -> [6@tp, 4, 5]"
    assert around(rule, choice("b: 6@dp, s: 4@tp")) == "[(6@dp)(4@tp), 5] -> [6@dp, 4@tp, 5]"


def test_a_dimension_that_is_broadcast_is_not_split() -> None:
    call = OpCall("expand", {}, (TensorType((8, 1), "f32"),), (TensorType((8, 6), "f32"),))
    assert around(make_rule("m 1 -> m n", call), choice("n: 6@tp")) == "[8, 1] -> [8, 6@tp]"


def test_a_reduction_that_gives_the_same_everywhere_leaves_nothing_pending() -> None:
    call = OpCall("size", {}, (TensorType((8, 6), "f32"),), (TensorType((6,), "f32"),))
    rule = make_rule("a b -> b", call, reduce={"a": SAME})
    assert around(rule, choice("a: 8@dp")) == "[8@dp, 6] -> [6]"


def test_a_body_decides_with_its_own_rule() -> None:
    call = OpCall("softmax", {}, (TensorType((8, 6), "f32"),), (TensorType((8, 6), "f32"),))
    inner = make_rule("a b -> a b", call)
    body = Body("split", inner, lambda op, values, fresh: ((), ()))
    rule = make_rule("a b -> a b", call, whole=("b",), bodies=(body,))
    assert around(rule, choice("b: 6@tp; body split")) == "[8, 6@tp] -> [8, 6@tp]"


def test_local_arguments_are_what_a_rank_passes() -> None:
    call = OpCall("some.op", {}, (TensorType((10, 8), "f32"),), (TensorType((10, 8), "f32"),))
    rule = make_rule(
        "a b -> a b",
        call,
        local={
            "sizes": Sizes((("a",), 3, ("a", "b"))),
            "count": Size(("a",), scale=2),
            "start": Offset("a", base=5, scale=2),
            "end": Offset("a", end=True),
            "diagonal": Offset("b", minus="a"),
        },
    )
    args = local_args(rule, choice("a: 10@tp, b: 8@dp"))
    found = [[evaluate(arg, {"dp": 1, "tp": tp}) for arg in _flat(args)] for tp in range(4)]
    # Blocks of 3, 3, 3 and 1 of the 10 elements of a; the second half of b starts at 4.
    assert found == [
        [3, 3, 12, 6, 5, 3, 4],
        [3, 3, 12, 6, 11, 6, 1],
        [3, 3, 12, 6, 17, 9, -2],
        [1, 3, 4, 2, 23, 10, -5],
    ]


def _flat(args: Mapping[str, Arg]) -> list[IntExpr]:
    items = [item for arg in args.values() for item in (arg if isinstance(arg, tuple) else (arg,))]
    return [item for item in items if isinstance(item, int | Expr)]


def test_an_indexed_factor_that_is_split() -> None:
    call = OpCall(
        "embedding",
        {},
        (TensorType((12, 4), "f32"), TensorType((5,), "i64")),
        (TensorType((5, 4), "f32"),),
    )
    rule = make_rule("v e, b -> b e", call, reduce={"v": "sum"}, indexed={"v": "shard"})
    assert shard_call(rule, choice("v: 12@tp")) == ("shard", {"offset": Coord("tp") * 3})
    assert shard_call(rule, choice("e: 4@tp")) is None


def test_points_are_those_of_the_rank_with_the_largest_part() -> None:
    rule = make_rule("m k, k n -> m n", MM, reduce={"k": "sum"})
    assert serial_points(rule) == 8 * 12 * 10
    assert local_points(rule, choice("")) == 8 * 12 * 10
    assert local_points(rule, choice("m: 8@dp, n: 10@tp")) == 4 * 12 * 3
    assert local_points(rule, choice("k: (3)(4@tp)")) == 8 * 3 * 10


def test_what_is_split() -> None:
    assert split_factors(choice("m: 8@dp, n: 10, k: (3@tp)(4)")) == {"m": ("dp",), "k": ("tp",)}


def test_without_a_rule_everything_is_everywhere() -> None:
    assert replicated(MESH, (8, 1)) == Layout.replicated(MESH, (8, 1)).normalized()
