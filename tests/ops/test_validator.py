"""The validator itself: rules that are wrong in one place must not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.ir.ops.table import pending
from autopar.ir.rules.local_arg import Size, Sizes
from autopar.ir.rules.rule import Linear, Rule, Shard, make_rule
from tests.ops.sample import Sample, f, i, s
from tests.ops.split_run_combine import check_body, check_linear, check_splits


def wrong_rules() -> dict[str, tuple[Sample, str, dict[str, object]]]:
    """Returns samples with a rule text and options that are wrong."""
    mm = s("mm", f(4, 6), f(6, 5))
    return {
        "wrong monoid": (mm, "m k, k n -> m n", {"reduce": {"k": "max"}}),
        "factors mixed up": (
            s("mm", f(4, 4), f(4, 4)),
            "m k, k n -> n m",
            {"reduce": {"k": "sum"}},
        ),
        "pending but complete": (s("amax", f(4, 5), [1]), "a b -> a", {"reduce": {"b": "same"}}),
        "softmax along its dimension": (s("_softmax", f(4, 5), 1, False), "a b -> a b", {}),
        "flip of the batch": (s("flip", f(4, 5), [0]), "a b -> a b", {}),
        "cumsum along its dimension": (s("cumsum", f(4, 5), 1), "a b -> a b", {}),
        "bias once per part": (
            s("addmm", f(5), f(4, 6), f(6, 5)),
            "n, m k, k n -> m n",
            {"reduce": {"k": "sum"}},
        ),
        "mean of unequal parts": (
            s("mean.dim", f(4, 5), [1]),
            "a b -> a",
            {"reduce": {"b": "sum"}},
        ),
        "size argument not local": (s("expand", f(4, 1), [4, 5]), "a 1 -> a b", {}),
        "wrong factor order": (
            s("view", f(6, 4), [24]),
            "a b -> (b a)",
            {"local": {"size": Sizes((("a", "b"),))}},
        ),
        "lookup of rows elsewhere": (
            s("embedding", f(6, 3), i(5, low=0, high=6)),
            "v e, b -> b e",
            {"reduce": {"v": "sum"}},
        ),
        "what was there counted by every part": (
            s("index_add", f(5, 3), 0, i(4, low=0, high=5), f(4, 3)),
            "a b, j, j b -> a b",
            {"reduce": {"j": "sum"}, "whole": ("a",)},
        ),
        "negative indices of a shard": (
            s("index.Tensor", f(6, 3), [i(5, low=-6, high=0)]),
            "v e, b -> b e",
            {
                "reduce": {"v": "sum"},
                "indexed": {"v": Shard("autopar.index", {"dim": 0, "extent": 0})},
            },
        ),
        "repeats not local": (
            s("repeat", f(4), [3]),
            "a -> (r a)",
            {"sizes": {"r": 3}},
        ),
        "local size of another factor": (
            s("split.Tensor", f(6, 4), 3),
            "(n e) b -> e b, e b",
            {"sizes": {"n": 2}, "whole": ("n",), "local": {"split_size": Size(("b",))}},
        ),
    }


@pytest.mark.parametrize("name", list(wrong_rules()))
def test_a_wrong_rule_is_caught(name: str) -> None:
    sample, text, options = wrong_rules()[name]
    rule = make_rule(text, sample.call, **options)  # type: ignore[arg-type]
    with pytest.raises((AssertionError, RuntimeError, IndexError, ValueError)):
        check_splits(sample, rule)


@pytest.mark.parametrize(
    ("sample", "row"),
    [
        (s("add.Tensor", f(4), f(4, low=1)), pending(0)),
        (s("mul.Tensor", f(4), f(4, low=1)), pending(0, 1)),
        (s("add.Scalar", f(4), 2.0), pending(0)),
        (s("relu", f(4)), pending(0)),
        (s("neg", f(4)), pending(0, monoids=("max",))),
        (s("constant_pad_nd", f(4), [1, 1], 2.0), pending(0)),
        (s("add.Scalar", i(4), -2), pending(0, monoids=("max",))),
    ],
    ids=str,
)
def test_a_wrong_linear_row_is_caught(sample: Sample, row: Linear) -> None:
    assert sample.rule is not None
    with pytest.raises(AssertionError):
        check_linear(sample, sample.rule, row)


def test_a_wrong_body_is_caught() -> None:
    mean, other = s("mean.dim", f(4, 5), [1]), s("mean.dim", f(4, 7), [1])
    rule, wrong = _rule(mean), _rule(other)
    swapped = replace(rule.bodies[0], expand=wrong.bodies[0].expand)
    with pytest.raises(AssertionError, match=r"body sum"):
        check_body(mean, replace(rule, bodies=(swapped,)))


def _rule(sample: Sample) -> Rule:
    assert sample.rule is not None
    return sample.rule
