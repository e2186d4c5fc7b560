"""Ops of the CPU's own are those that torch's list of its ops gives to CPUs alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torchgen
import yaml

from autopar.ir.devices import CPU, CUDA
from autopar.ir.ops import RULES
from autopar.ir.ops.on_devices import _OF_CPUS, NEUTRAL, is_own
from autopar.ir.rules.rule import OpCall, Rule
from tests.ops.samples import samples_by_kind

LIST = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
"""Which kernels each op of torch has, by the keys that devices have."""

MADE = "Composite"
"""What keys begin with of ops that consist of others."""


@cache
def native() -> dict[str, dict[str, Any]]:
    """Returns the entries of torch's list by kind."""
    entries = yaml.load(LIST.read_text(), Loader=yaml.CSafeLoader)
    return {kind_of(str(entry["func"]).partition("(")[0]): entry for entry in entries}


def kind_of(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def runs_on_gpus(kind: str) -> bool:
    """Whether torch has a kernel for GPUs, or the op consists of others."""
    entry = native()[kind]
    if "structured_delegate" in entry:
        return runs_on_gpus(kind_of(entry["structured_delegate"]))
    dispatch = entry.get("dispatch")
    keys = [key.strip() for each in dispatch or () for key in each.split(",")]
    composite = dispatch is None or any(key.startswith(MADE) for key in keys)
    return composite or "CUDA" in keys or "ufunc_inner_loop" in entry


@pytest.mark.parametrize("kind", sorted(RULES.keys() & native().keys()))
def test_ops_with_rules(kind: str) -> None:
    assert is_own(kind, CUDA) != runs_on_gpus(kind)
    assert not is_own(kind, CPU)


def test_others_that_are_refused() -> None:
    known = _OF_CPUS & native().keys()
    assert len(known) > 20
    assert [kind for kind in sorted(known) if runs_on_gpus(kind)] == []


@pytest.mark.parametrize("kind", ["mkldnn._linear_pointwise.default", "onednn.qlinear_pointwise"])
def test_namespaces_of_cpus(kind: str) -> None:
    assert is_own(kind, CUDA)
    assert not is_own(kind, CPU)


@pytest.mark.parametrize(("own", "neutral"), NEUTRAL.items())
def test_what_takes_their_places_has_their_rules(own: str, neutral: str) -> None:
    assert not is_own(neutral, CUDA)
    for sample in samples_by_kind()[own]:
        call = sample.call
        other = OpCall(neutral, call.args, call.operands, call.results)
        found, expected = RULES[neutral](other), sample.rule
        assert found is not None
        assert expected is not None
        assert (found.operands, found.results) == (expected.operands, expected.results)
        assert found.linear == expected.linear
        assert set(expected.splittable) <= set(found.splittable)
        assert split_at_all(found) == split_at_all(expected)


def split_at_all(rule: Rule) -> set[str]:
    """Returns the factors that may be split, by the op or by a body."""
    return set(rule.splittable).union(*(each.rule.splittable for each in rule.bodies))
