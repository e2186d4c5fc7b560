"""Torch's own functions call the ops that they stand for, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.ir.memory.kernels import overload
from autopar.ir.ops.shape.view import RESHAPES
from autopar.runtime.kernels.bindings import BINDINGS, fast_kernel
from autopar.runtime.kernels.table import kernel, signature
from tests.ops.sample import Sample
from tests.ops.samples import samples_by_kind


class Calls(TorchDispatchMode):
    """Notes which ops are called."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def called(function: Callable[..., Any], sample: Sample) -> tuple[list[str], Any]:
    """Returns the ops that a function calls as emitted code calls it, and what it returns."""
    named = dict(sample.args)
    leading = []
    for name in signature(sample.kind).positional:
        if name not in named:
            break
        leading.append(named.pop(name))
    with Calls() as calls:
        result = function(*leading, **named)
    return calls.ops, result


@pytest.mark.parametrize("kind", sorted(BINDINGS.keys() - RESHAPES.keys()))
def test_it_calls_the_op(kind: str) -> None:
    samples = samples_by_kind()[kind]
    assert samples
    for sample in samples:
        expected, result = called(overload(kind), sample)
        ops, found = called(BINDINGS[kind], sample)
        assert ops == expected
        torch.testing.assert_close(found, result, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", sorted(RESHAPES))
def test_views_take_operands_of_any_strides(kind: str) -> None:
    x = torch.arange(6).reshape(2, 3).T
    assert fast_kernel(kind)(x, [6]).tolist() == kernel(kind)(x, [6]).tolist()
