"""Brute force finds the splits of an op, and rules lack none of them but for a stated reason."""

from __future__ import annotations

import zlib

import pytest

from tests.ops.brute_force import _operand_placements, missing_strategies, valid_strategies
from tests.ops.sample import Sample, f, i, s
from tests.ops.validate import Finding, all_samples, validate

SHARES = 24
"""In so many shares ops are tried, on our own samples; `make validate-rules` tries all of both."""

FAST = 4
"""A share without ops whose kernels die of operands that don't fit, which take minutes."""


def texts(sample: Sample) -> set[str]:
    return {str(strategy) for strategy in valid_strategies(sample)}


def test_the_splits_of_a_product_are_found() -> None:
    found = texts(s("mm", f(4, 6), f(6, 5)))
    splits = {"dim 0, whole -> dim 0", "whole, dim 1 -> dim 1", "dim 1, dim 0 -> sum"}
    assert found == splits | {"sum, whole -> sum", "whole, sum -> sum"}


def test_of_many_operands_few_combinations_are_tried() -> None:
    tried = list(_operand_placements([f(4, 3) for _ in range(22)]))
    assert len(tried) < 500
    for dim in (0, 1):
        rest = (dim,) * 21
        assert {(dim, *rest), (None, *rest), (dim, *(None,) * 21)} <= set(tried)


def test_a_dimension_that_an_op_goes_along_is_not_split() -> None:
    assert texts(s("flip", f(4, 6), [0])) == {
        "dim 1 -> dim 1",
        "sum -> sum",
        "max -> max",
        "min -> min",
    }
    assert "dim 1 -> dim 1" not in texts(s("cumsum", f(4, 6), 1))


def test_a_split_that_a_rule_lacks_is_named() -> None:
    class Unruled(Sample):
        has_rule = False

    sample = s("embedding", f(6, 4), i(5, low=0, high=6))
    valid = valid_strategies(sample)
    assert missing_strategies(sample, valid) == []
    bare = Unruled(sample.kind, sample.args)
    assert {str(one) for one in missing_strategies(bare, valid)} >= {
        "dim 1, whole -> dim 1",
        "whole, dim 0 -> dim 0",
    }


def test_rules_lack_no_split() -> None:
    samples = all_samples(harvested=False)
    # By name, so that the share stays as it is if an op comes.
    chosen = [kind for kind in samples if zlib.crc32(kind.encode()) % SHARES == FAST]
    assert [_lack(validate(kind, samples[kind])) for kind in chosen] == [[] for _ in chosen]


def _lack(found: Finding) -> list[str]:
    return [*found.wrong, *(f"{found.kind}: {text}" for text in found.unexplained)]


def test_a_reason_is_one_of_a_split_and_not_of_an_op() -> None:
    found = Finding("aten.cat.default", missing=["whole, dim 1 -> dim 1", "dim 0, dim 0 -> dim 0"])
    assert found.unexplained == ["dim 0, dim 0 -> dim 0"]
    assert _lack(found) == ["aten.cat.default: dim 0, dim 0 -> dim 0"]
    assert found.outdated == ["whole, dim 0 -> dim 0"]


@pytest.mark.slow
def test_no_rule_lacks_a_split() -> None:
    found = [_lack(validate(kind, given)) for kind, given in all_samples().items()]
    assert [text for texts in found for text in texts] == []
