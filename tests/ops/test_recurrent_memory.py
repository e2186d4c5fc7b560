"""What is said of recurrent layers' memory, beside what their kernels take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopar.cost.memory.kernel_results import effect
from autopar.ir.memory.strides import Placed
from autopar.ir.ops.products.recurrent import GRADIENT, RECURRENT
from autopar.ir.ops.products.recurrent_memory import workspace_bytes
from autopar.runtime.kernels.recurrent import recurrent, recurrent_backward
from tests.judges.tracking import Tracking

LAYERS: list[dict[str, Any]] = [
    {},
    {"num_layers": 3, "batch_first": True},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True},
]

SIZES = [(32, 8, 64, 64), (20, 9, 96, 32), (9, 33, 48, 80)]
"""Steps, batch, features and hidden."""


@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 0), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("sizes", [*SIZES, (6, 5, 7, 8), (3, 5, 100, 50), (128, 32, 256, 256)])
def test_a_workspace(sizes: tuple[int, ...], dtype: torch.dtype, slack: float) -> None:
    steps, batch, features, hidden = sizes
    layer = nn.LSTM(features, hidden, dtype=dtype)
    weights = [each.detach() for each in layer.parameters()]
    state = torch.zeros(1, batch, hidden, dtype=dtype)
    x = torch.zeros(steps, batch, features, dtype=dtype)
    options = (False, [], 2, hidden, 1, True, False, False, True)
    try:
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer(x, *weights, state, state, *options)
    except RuntimeError as error:
        # Of halves, oneDNN has a layer for some processors only.
        if dtype == torch.float32 or "could not create a primitive" not in str(error):
            raise
        pytest.skip("oneDNN has no such layer for this processor")
    found = workspace_bytes(*sizes, dtype.itemsize)
    assert found == pytest.approx(workspace.nbytes, rel=slack)


def taken(kind: str, args: dict[str, Any], tensors: list[Tensor], results: list[Tensor]) -> int:
    """Returns what a kernel is said to take besides its results."""
    placed = tuple(Placed(tuple(t.shape), tuple(t.stride()), t.element_size()) for t in tensors)
    shapes = tuple(tuple(result.shape) for result in results)
    plain = tuple((name, arg) for name, arg in args.items() if isinstance(arg, (int, str)))
    return effect(kind, plain, placed, shapes).temporary_bytes


@pytest.mark.parametrize("options", LAYERS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("mode", "layer", "dtype", "slack"),
    [
        ("lstm", nn.LSTM, torch.float32, 0.01),
        ("lstm", nn.LSTM, torch.float64, 0.2),
        ("gru", nn.GRU, torch.float32, 0.2),
        ("rnn_tanh", nn.RNN, torch.float32, 0.2),
    ],
)
def test_layers(
    mode: str,
    layer: type[nn.RNNBase],
    dtype: torch.dtype,
    slack: float,
    sizes: tuple[int, ...],
    options: dict[str, Any],
) -> None:
    """Those of one kernel are known to the byte; others keep more of gradients meanwhile."""
    steps, batch, features, hidden = sizes
    module = layer(features, hidden, dtype=dtype, **options)  # type: ignore[arg-type]
    params = [each.detach() for each in module.parameters()]
    count, directions = module.num_layers, 2 if module.bidirectional else 1
    shape = (count * directions, batch, hidden)
    state = [torch.zeros(shape, dtype=dtype) for _ in range(2 if mode == "lstm" else 1)]
    order = (batch, steps) if module.batch_first else (steps, batch)
    x = torch.zeros(*order, features, dtype=dtype)
    given = {"has_biases": module.bias, "num_layers": count}
    given |= {"bidirectional": module.bidirectional, "batch_first": module.batch_first}
    operands = [x, *state, *params]
    with Tracking(operands) as seen, torch.no_grad():
        before = seen.live_bytes
        results = recurrent(mode, x, state, params, **given)
        measured = seen.peak_bytes - before
    said = taken(RECURRENT, {"mode": mode, **given}, operands, list(results))
    assert said + sum(each.nbytes for each in results) == pytest.approx(measured, rel=slack)
    gradients = [torch.zeros_like(results[0]), *(None for _ in state)]
    needs = [True, False, True]
    del results
    with Tracking([*operands, gradients[0]]) as seen, torch.no_grad():  # type: ignore[list-item]
        before = seen.live_bytes
        found = recurrent_backward(mode, x, state, params, gradients, needs, **given)
        measured = seen.peak_bytes - before
    said = taken(GRADIENT, {"mode": mode, **given}, operands, found)
    assert said + sum(each.nbytes for each in found) == pytest.approx(measured, rel=slack)
