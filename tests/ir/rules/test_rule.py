"""The rule language: what it means, and what its errors say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from autopar.ir.program import Arg, Ref
from autopar.ir.rules.local_arg import Offset
from autopar.ir.rules.rule import SAME, Body, Linear, OpCall, Rule, RuleError, TensorType, make_rule

Shape = tuple[int, ...]


def call(
    operands: Sequence[Shape],
    results: Sequence[Shape],
    args: Mapping[str, Arg] | None = None,
    dtype: str = "f32",
) -> OpCall:
    """A call of some op with tensors of these shapes."""
    return OpCall(
        "some.op",
        args or {},
        tuple(TensorType(shape, dtype) for shape in operands),
        tuple(TensorType(shape, dtype) for shape in results),
    )


@pytest.mark.parametrize(
    ("text", "operands", "results", "expected", "sizes"),
    [
        ("m k, k n -> m n", [(2, 3), (3, 4)], [(2, 4)], "m k, k n -> m n", "m=2 k=3 n=4"),
        ("(b s) d -> b s d", [(6, 5)], [(2, 3, 5)], "(b s) d -> b s d", "b=2 s=3 d=5"),
        ("b s d -> (b s) d", [(2, 3, 5)], [(6, 5)], "b s d -> (b s) d", "b=2 s=3 d=5"),
        (
            "v e, *b -> *b e",
            [(9, 4), (2, 3)],
            [(2, 3, 4)],
            "v e, b0 b1 -> b0 b1 e",
            "v=9 e=4 b0=2 b1=3",
        ),
        ("v e, *b -> *b e", [(9, 4), ()], [(4,)], "v e,  -> e", "v=9 e=4"),
        ("*b n -> *b n", [(4,)], [(4,)], "n -> n", "n=4"),
        ("m 1 -> m n", [(2, 1)], [(2, 5)], "m 1 -> m n", "m=2 n=5"),
        ("a -> a, a", [(3,)], [(3,), (3,)], "a -> a, a", "a=3"),
        ("-> a", [], [(3,)], "-> a", "a=3"),
        ("a ->", [(3,)], [()], "a ->", "a=3"),
        ("a -> ", [(0,)], [()], "a ->", "a=0"),
    ],
)
def test_rules_by_example(
    text: str, operands: list[Shape], results: list[Shape], expected: str, sizes: str
) -> None:
    rule = make_rule(text, call(operands, results), reduce=dict.fromkeys("vabmkn", "sum"))
    assert str(rule) == expected
    assert " ".join(f"{name}={size}" for name, size in rule.sizes.items()) == sizes


def test_sizes_that_shapes_do_not_tell_can_be_given() -> None:
    rule = make_rule("(a b) -> (b a)", call([(6,)], [(6,)]), sizes={"a": 2})
    assert rule.sizes == {"a": 2, "b": 3}


@pytest.mark.parametrize(
    ("text", "operands", "results", "message"),
    [
        ("m k", [(2, 3)], [], "rule 'm k' has no '->'"),
        ("m, n -> m n", [(2,)], [(2, 3)], "is for 2 tensors, there are 1"),
        ("m -> m, m", [(2,)], [(2,)], "is for 2 tensors, there are 1"),
        ("m -> m", [(2, 3)], [(2,)], "'m' doesn't fit 2 dimensions"),
        ("m n -> m", [(2,)], [(2,)], "'m n' doesn't fit 1 dimensions"),
        ("*a *b -> *a", [(2,)], [(2,)], r"'\*a \*b' doesn't fit 1 dimensions"),
        ("m ? -> m", [(2, 3)], [(2,)], r"unexpected '\?' in 'm \?'"),
        ("(m -> m", [(2,)], [(2,)], r"unexpected '\(' in '\(m'"),
        ("m -> m", [(2,)], [(3,)], "some.op: factor m is 2, the dimension has 3"),
        ("(a b) -> a b", [(6,)], [(4, 2)], r"factors \('a', 'b'\) give 8, the dimension has 6"),
        ("(a b) -> a", [(7,)], [(2,)], r"the sizes of \['b'\] must be given"),
        ("(a b) -> (b a)", [(6,)], [(6,)], r"the sizes of \['a', 'b'\] must be given"),
        ("m k -> m", [(2, 3)], [(2,)], "factor k is absent from result 0; name its reduction"),
    ],
)
def test_rules_that_contradict_themselves_or_the_shapes(
    text: str, operands: list[Shape], results: list[Shape], message: str
) -> None:
    with pytest.raises(RuleError, match=message):
        make_rule(text, call(operands, results))


def test_a_reduction_belongs_to_a_factor_and_a_result() -> None:
    both = call([(2, 3)], [(2,), (3,)])
    rule = make_rule("a b -> a, b", both, reduce={("b", 0): "max", ("a", 1): "sum"})
    assert rule.reduce == {("b", 0): "max", ("a", 1): "sum"}
    assert make_rule("a b -> a, b", both, reduce={"a": "sum", "b": "sum"}).reduce == {
        ("b", 0): "sum",
        ("a", 1): "sum",
    }
    with pytest.raises(RuleError, match="factor a is absent from result 1"):
        make_rule("a b -> a, b", both, reduce={("b", 0): "max"})


def test_whole_factors_need_no_reduction_and_are_not_splittable() -> None:
    rule = make_rule("*b k -> *b", call([(2, 3, 4)], [(2, 3)]), whole=("k", "*b", "gone"))
    assert rule.whole == {"k", "b0", "b1"}
    assert rule.reduce == {}
    assert rule.splittable == ()


def test_factors_of_size_one_are_not_splittable() -> None:
    assert make_rule("a b -> a b", call([(1, 4)], [(1, 4)])).splittable == ("b",)


def test_flat_factors_are_those_that_an_index_or_offset_addresses() -> None:
    rule = make_rule(
        "v e, b -> b e",
        call([(9, 4), (2,)], [(2, 4)]),
        reduce={"v": "sum"},
        indexed={"v": "some.shard"},
        local={"start": Offset("e", minus="b")},
    )
    assert rule.flat == {"v", "e", "b"}


def test_bodies_have_rules_of_their_own() -> None:
    inner = make_rule("a b -> a", call([(2, 3)], [(2,)]), reduce={"b": "sum"})
    body = Body("split", inner, lambda op, values, fresh: ((), ()))
    rule = make_rule("a b -> a", call([(2, 3)], [(2,)]), whole=("b",), bodies=(body,))
    assert rule.under("split") is inner
    assert rule.under("") is rule
    assert rule.body("other") is None


@pytest.mark.parametrize(
    ("operand", "result", "survives"),
    [("f32", "f32", True), ("bf16", "f32", True), ("i64", "i64", True), ("i64", "f32", False)],
)
def test_integers_that_turn_into_floats_are_not_linear(
    operand: str, result: str, survives: bool
) -> None:
    row = Linear(frozenset((0,)))
    types = OpCall("some.op", {}, (TensorType((2,), operand),), (TensorType((2,), result),))
    assert make_rule("a -> a", types, linear=(row,)).linear == ((row,) if survives else ())


def test_rows_that_name_absent_operands_are_left_out() -> None:
    rows = (Linear(frozenset((0,))), Linear(frozenset((0, 1))))
    assert make_rule("a -> a", call([(2,)], [(2,)]), linear=rows).linear == rows[:1]


def test_what_a_call_tells_of_its_arguments() -> None:
    types = call(
        [(2,), (3,), (4,)],
        [(2,)],
        {"x": Ref("a"), "dim": -1, "rest": (Ref("b"), Ref("c")), "sizes": (1, 2), "keepdim": True},
    )
    assert types.positions["rest"] == (1, 2)
    assert types.tensor("rest") == TensorType((3,), "f32")
    assert types.tensor("dim") is None
    assert types.integer("dim", 0) == -1
    assert types.integer("other", 7) == 7
    assert types.integers("sizes") == (1, 2)
    assert types.integers("dim") == (-1,)
    assert types.integers("other", (3,)) == (3,)
    assert types.flag("keepdim")
    assert not types.flag("other")
    with pytest.raises(RuleError, match="argument keepdim is True, not an integer"):
        types.integer("keepdim", 0)
    with pytest.raises(RuleError, match=r"argument rest is .*, not a list of integers"):
        types.integers("rest")


def test_a_factor_may_reduce_to_the_same_result_everywhere() -> None:
    rule: Rule = make_rule("a -> ", call([(3,)], [()]), reduce={"a": SAME})
    assert rule.reduce == {("a", 0): SAME}
