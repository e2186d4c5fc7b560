"""Predicted flops beside those that torch counts while it runs the models of the zoo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from autopar.cost import Cluster, evaluate
from autopar.frontend.torch import Recipe, capture
from autopar.frontend.torch.eager import record
from tests.zoo.models import ZOO, Example

QUICK = ("gpt2", "resnet")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ZOO]


def forward(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return sdpa_flop_count(query, key, value)


def backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def experts(left: Any, right: Any, *rest: Any, out_shape: Any = None, **named: Any) -> int:
    """Of each row of tokens, sorted by expert, one matrix is its expert's."""
    rows, inner = left if len(left) == 2 else (out_shape[-2], left[-1])
    return int(2 * rows * inner * right[-1])


def counted(example: Example) -> int:
    """Returns torch's count of a forward and backward pass.

    It leaves out the attention of CPUs, which is counted by its own formula of other devices here,
    and experts.
    """
    aten, batch = torch.ops.aten, example.batch(0)
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
        aten._grouped_mm: experts,
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        if example.loss is None:
            example.model(**batch).loss.backward()
        else:
            inputs, target = batch
            given = inputs if isinstance(inputs, tuple) else (inputs,)
            example.loss(example.model(*given), target).backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    example = ZOO[name]()
    expected = counted(example)
    cluster = Cluster.load("cpu")
    optimizer = torch.optim.SGD(example.model.parameters(), 0.1)
    recipe = Recipe(loss=example.loss, optimizer=optimizer)
    captured = capture(example.model, example.batch(0), recipe)
    assert evaluate(captured.program, cluster).flops == expected
    recorded = record(example.model, example.batch(0), loss=example.loss)
    assert evaluate(recorded.program, cluster).flops == expected
