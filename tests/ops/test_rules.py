"""Every rule is proven: split, run the parts, combine, and compare with the whole op."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from autopar.ir.ops import RULES
from tests.ops import samples_image, samples_layout, samples_pointwise, samples_reduction
from tests.ops.sample import Sample
from tests.ops.split_run_combine import check_body, check_linear, check_splits

NOT_RUN = {
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
}
"""Ops whose content is anything."""


@cache
def samples_by_kind() -> dict[str, list[Sample]]:
    """Returns the samples of each op."""
    found: dict[str, list[Sample]] = {}
    for module in (samples_pointwise, samples_reduction, samples_layout, samples_image):
        for sample in module.samples():
            found.setdefault(sample.kind, []).append(sample)
    return found


@pytest.fixture(autouse=True)
def _no_gradients() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", sorted(set(RULES) - NOT_RUN))
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
