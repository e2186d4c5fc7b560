"""The notation of rules: what it can say, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autopar.ir.ops.table import pending
from autopar.ir.rule import SAME, OpCall, Rule, RuleError, TensorType, make_rule


def rule(text: str, *shapes: Sequence[int], results: int = 1, **options: Any) -> Rule:
    """Returns the rule of an op `test` of tensors of these shapes, the last ones its results."""
    dtypes = options.pop("dtypes", ["f32"] * len(shapes))
    types = tuple(TensorType(tuple(s), d) for s, d in zip(shapes, dtypes, strict=True))
    call = OpCall("test", {}, types[:-results], types[-results:])
    return make_rule(text, call, **options)


@pytest.mark.parametrize(
    ("text", "shapes", "sizes"),
    [
        ("m k, k n -> m n", [(2, 3), (3, 4), (2, 4)], {"m": 2, "k": 3, "n": 4}),
        ("*b -> *b", [(2, 3), (2, 3)], {"b0": 2, "b1": 3}),
        ("*b c -> c *b", [(3,), (3,)], {"c": 3}),
        ("(a b) -> a b", [(6,), (2, 3)], {"a": 2, "b": 3}),
        ("m 1 -> m n", [(2, 1), (2, 5)], {"m": 2, "n": 5}),
        ("a -> ", [(2,), ()], {"a": 2}),
    ],
)
def test_sizes_follow_from_shapes(
    text: str, shapes: list[tuple[int, ...]], sizes: dict[str, int]
) -> None:
    assert rule(text, *shapes, reduce={"k": "sum", "a": "sum"}).sizes == sizes


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("a b", [(2,), (2,)], r"has no '->'"),
        ("a -> a", [(2,), (2,), (2,)], r"is for 1 tensors, there are 2"),
        ("a b -> a b", [(2,), (2,)], r"'a b' doesn't fit 1 dimensions"),
        ("*a *b -> *a *b", [(2,), (2,)], r"doesn't fit"),
        ("a+b -> a", [(2,), (2,)], r"unexpected '\+' in 'a\+b'"),
        ("a -> a", [(2,), (3,)], r"factor a is 2, the dimension has 3"),
        ("(a b) -> (a b)", [(6,), (6,)], r"the sizes of \['a', 'b'\] must be given"),
        ("(a b) -> a b", [(7,), (2, 3)], r"factors \('a', 'b'\) give 6, the dimension has 7"),
        ("m 1 -> m n", [(2, 3), (2, 5)], r"factors \(\) give 1, the dimension has 3"),
        ("a b -> a", [(2, 3), (2,)], r"factor b is absent from result 0; name its reduction"),
    ],
)
def test_what_does_not_fit_is_named(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        rule(text, *shapes)


def test_reductions_may_differ_between_results() -> None:
    both = rule(
        "a b -> a, b",
        *[(2, 3), (2,), (3,)],
        results=2,
        reduce={("b", 0): "max", ("a", 1): SAME},
    )
    assert both.reduce == {("b", 0): "max", ("a", 1): "same"}


def test_whole_factors_need_no_reduction() -> None:
    assert rule("*b k -> *b", (2, 3, 4), (2, 3), whole=("k",)).splittable == ("b0", "b1")
    assert rule("*b k -> k", (2, 3, 4), (4,), whole=("*b",)).splittable == ("k",)


@pytest.mark.parametrize(
    ("dtypes", "kept"),
    [
        (["f32", "f32"], True),
        (["f16", "f32"], True),
        (["i32", "i32"], True),
        (["i8", "i32"], False),
    ],
)
def test_pending_integers_do_not_change_their_dtype(dtypes: list[str], kept: bool) -> None:
    found = rule("a -> a", (4,), (4,), linear=(pending(0),), dtypes=dtypes)
    assert bool(found.linear) == kept


def test_rows_of_absent_operands_are_dropped() -> None:
    assert rule("a -> a", (4,), (4,), linear=(pending(0, 1),)).linear == ()
