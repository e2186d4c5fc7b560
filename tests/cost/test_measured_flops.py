"""Predicted flops beside those that torch counts while it runs the models of the zoo."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import (
    FlopCounterMode,
    conv_flop_count,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from autopar.cost import Cluster, evaluate
from autopar.frontend.torch import Recipe, capture
from autopar.frontend.torch.capture.eager import record
from autopar.ir.program import Program
from tests.cost.models import MORE
from tests.zoo.models import ZOO, Example

EXAMPLES = {**ZOO, **MORE}
QUICK = ("gpt2", "resnet", "convnet", "diffusion")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES]


def forward(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return sdpa_flop_count(query, key, value)


def backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


def experts(left: Any, right: Any, *rest: Any, out_shape: Any = None, **named: Any) -> int:
    """Of each row of tokens, sorted by expert, one matrix is its expert's."""
    rows, inner = left if len(left) == 2 else (out_shape[-2], left[-1])
    return int(2 * rows * inner * right[-1])


def convolution(
    gradient: Any, x: Any, weight: Any, *rest: Any, out_shape: Any = None, **named: Any
) -> int:
    """In groups, a gradient takes what the convolution takes; torch's formula has one group."""
    transposed, mask = rest[4], rest[7]
    return conv_flop_count(x, weight, gradient, transposed) * (mask[0] + mask[1])


def recurrent(x: Any, inputs: Any, states: Any, *rest: Any, **named: Any) -> int:
    """A layer of an LSTM: every step is multiplied by every weight."""
    return 2 * math.prod(x[:2]) * (math.prod(inputs) + math.prod(states))


def recurrent_backward(*shapes: Any, **named: Any) -> int:
    return 2 * recurrent(*shapes)


def counted(example: Example) -> int:
    """Returns torch's count of a forward and backward pass.

    It leaves out the attention of CPUs, which is counted by its own formula of other devices here,
    experts and recurrent layers.
    """
    aten, batch = torch.ops.aten, example.batch(0)
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
        aten._grouped_mm: experts,
        aten.convolution_backward: convolution,
        aten.mkldnn_rnn_layer: recurrent,
        aten.mkldnn_rnn_layer_backward: recurrent_backward,
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        if example.loss is None:
            example.model(**batch).loss.backward()
        else:
            inputs, target = batch
            given = inputs if isinstance(inputs, tuple) else (inputs,)
            example.loss(example.model(*given), target).backward()
    return int(counter.get_total_flops())


def computed_again(program: Program) -> int:
    """Returns the flops of forward passes that are a part of gradients: those of fused layers."""
    found = evaluate(program, Cluster.load("cpu"))
    pairs = zip(found.ops, found.costs, strict=True)
    return sum(cost.flops for op, cost in pairs if op.kind == "autopar.recurrent")


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    example = EXAMPLES[name]()
    expected = counted(example)
    cluster = Cluster.load("cpu")
    optimizer = torch.optim.SGD(example.model.parameters(), 0.1)
    recipe = Recipe(loss=example.loss, optimizer=optimizer)
    captured = capture(example.model, example.batch(0), recipe)
    assert evaluate(captured.program, cluster).flops == expected + computed_again(captured.program)
    recorded = record(example.model, example.batch(0), loss=example.loss)
    assert evaluate(recorded.program, cluster).flops == expected
