"""Presets that leave work undivided say so, with the ops that are the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar


def remarks(strategy: str, batch: int) -> list[str]:
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    compiled = autopar.compile(
        network, (torch.randn(batch, 16),), mesh="dp=2,tp=2", strategy=strategy
    )
    report = compiled.compiled.report
    found = [each for each in report if each.category == "undivided"]
    summary = compiled.summary().splitlines()
    assert [line for line in summary if " processes along " in line] == [
        f"{each.subject}: {each.detail} [{each.loc}]" for each in found
    ]
    return [f"{each.subject}: {each.detail}" for each in found]


def test_what_is_divided_needs_no_words() -> None:
    assert not remarks("data:dp,tensor:tp", 8)
    assert not remarks("fsdp:dp,tensor:tp", 8)
    assert not remarks("replicate", 8)
    assert not remarks("auto", 8)


@pytest.mark.parametrize("preset", ["data", "fsdp", "zero1"])
def test_a_batch_of_one(preset: str) -> None:
    assert remarks(f"{preset}:dp,tensor:tp", 1) == [
        f"{preset}:dp: all 2 processes along dp compute 100% of the flops (aten.addmm.default 100%)"
    ]


def test_presets_of_one_axis_are_named_together() -> None:
    [remark] = remarks("data:dp", 1)
    assert remark.startswith("data:dp: all 2 processes along dp compute 100%")
