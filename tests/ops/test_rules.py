"""Every rule is proven: split, run the parts, combine, and compare with the whole op."""

from __future__ import annotations

import pytest

from tests.ops.samples import RUN, samples_by_kind
from tests.ops.split_run_combine import check_body, check_linear, check_splits


@pytest.mark.parametrize("kind", RUN)
def test_split_run_combine(kind: str) -> None:
    samples = samples_by_kind().get(kind, [])
    assert samples, f"{kind} has a rule and no sample"
    rules = [(sample, rule) for sample in samples if (rule := sample.rule) is not None]
    assert rules, f"no sample of {kind} has a rule"
    for sample, rule in rules:
        check_splits(sample, rule)
        for row in rule.linear:
            check_linear(sample, rule, row)
        check_body(sample, rule)
