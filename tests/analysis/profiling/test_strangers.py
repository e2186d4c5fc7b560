"""Profiles of modules as people write them, beside what PyTorch does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import autopar
from autopar.analysis.profiling.show import Profile
from tests.analysis.profiling.strangers import CASES
from tests.judges.tracking import Tracking


def run(model: nn.Module, x: Any) -> None:
    """Runs a forward and backward pass from all outputs, weighted by 1."""
    found = model(x)
    roots = [
        each
        for each in pytree.tree_leaves(found)
        if isinstance(each, Tensor) and each.requires_grad
    ]
    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    del found


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Returns the bytes of the storages that autograd keeps besides those that are there."""
    there = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers(), x)}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if (key := tensor.untyped_storage()._cdata) not in there:
            found[key] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = model(x)
    del held
    return sum(each.untyped_storage().nbytes() for each in found.values())


def profiled(name: str) -> tuple[Profile, nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = CASES[name]()
    return autopar.profile(model, x, cluster="h100", backward=True), model, x


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    found, model, x = profiled(name)
    with FlopCounterMode(display=False) as counter:
        run(model, x)
    assert found.flops == counter.get_total_flops() > 0
    work = sum(node.flops for node in found.nodes if node.phase == "backward")
    assert sum(node.backward_flops for node in found.nodes) == work


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_that_a_tracking_mode_sees(name: str) -> None:
    found, model, x = profiled(name)
    assert found.saved_bytes == saved_bytes(model, x)
    with Tracking([*model.parameters(), *model.buffers(), x]) as seen:
        run(model, x)
    # What is computed again isn't held for as long as what autograd saves.
    slack = 0.002 if name == "again" else 0
    assert 0 <= found.peak_bytes - seen.peak_bytes <= slack * seen.peak_bytes


@torch.library.custom_op("strangers::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


twice.register_fake(torch.empty_like)


class Unknown(nn.Module):
    """An op that nobody has a rule for."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(twice(x))


def test_ops_without_a_rule_are_named_and_priced_by_bytes() -> None:
    x = torch.randn(64, 64)
    found = autopar.profile(Unknown(), x, backward=False)
    assert found.evaluation.unknown == {"strangers.twice.default": 1}
    assert "no rule  strangers.twice.default: priced by bytes" in str(found)
    assert found.as_dict()["unknown_ops"] == {"strangers.twice.default": 1}
    (node,) = (node for node in found.nodes if node.kind == "strangers.twice.default")
    assert node.moved_bytes == 2 * x.nbytes
    assert node.seconds > 0


def test_a_product_in_place_multiplies_as_much_as_another() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(8, 8).addmm_(x, x)

    assert autopar.profile(InPlace(), torch.randn(8, 8), backward=False).flops == 2 * 8**3
