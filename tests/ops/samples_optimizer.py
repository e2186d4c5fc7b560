"""Samples of fused steps of optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.ops.sample import Sample, f, s

ADAM = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
SGD = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}
ADAGRAD: dict[str, Any] = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}


def samples() -> Iterator[Sample]:
    """Yields the samples: one parameter each, as lowering makes them."""
    rate, count = torch.tensor(0.1, dtype=torch.float64), torch.tensor(3.0)
    p, g, m = [f(5, 4)], [f(5, 4, low=-1)], [f(5, 4, high=1)]
    v, most = [f(5, 4, low=0)], [f(5, 4, low=0.5)]
    for name in ("adam", "adamw"):
        plain = (p, g, m, v, [], [count])
        yield s(f"_fused_{name}", *plain, lr=0.1, amsgrad=False, **ADAM)
        yield s(f"_fused_{name}", p, g, m, v, most, [count], lr=0.1, amsgrad=True, **ADAM)
        yield s(f"_fused_{name}.tensor_lr", *plain, lr=rate, amsgrad=False, **ADAM)
    for nesterov in (True, False):
        more = {"nesterov": nesterov, "is_first_step": nesterov, **SGD}
        yield s("_fused_sgd", p, g, m, lr=0.1, **more)
        yield s("_fused_sgd.tensor_lr", p, g, m, lr=rate, **more)
    yield s("_fused_adagrad", p, g, v, [count], lr=0.1, **ADAGRAD)
    yield s("_fused_adagrad.tensor_lr", p, g, v, [count], lr=rate, **ADAGRAD)
