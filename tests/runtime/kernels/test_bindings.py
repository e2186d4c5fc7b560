"""Torch's own functions call the ops that they stand for, and no other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.ir.memory.kernels import overload
from autopar.ir.ops.shape.view import RESHAPES
from autopar.runtime.kernels.bindings import fast_kernel
from autopar.runtime.kernels.table import kernel, signature
from tests.ops.sample import Sample
from tests.ops.samples import RUN, samples_by_kind

ATEN = sorted(kind for kind in RUN if kind.startswith("aten."))
BOUND = [kind for kind in ATEN if fast_kernel(kind) is not kernel(kind)]


class Calls(TorchDispatchMode):
    """Notes which ops are called."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def called(function: Callable[..., Any], sample: Sample, left_out: str) -> tuple[list[str], Any]:
    """Returns the ops that a function calls as emitted code calls it, and what it returns.

    Args:
        function: The function.
        sample: Its arguments.
        left_out: `defaults`: what is equal to its default, as in programs; `options`: all that
            has a default.
    """
    named = dict(sample.args)
    for argument in overload(sample.kind)._schema.arguments if left_out else ():
        given = named.get(argument.name)
        is_plain = isinstance(given, (int, float, str)) or given is None
        is_default = is_plain and given == argument.default_value
        if argument.has_default_value() and (is_default or left_out == "options"):
            named.pop(argument.name, None)
    leading = []
    for name in signature(sample.kind).positional:
        if name not in named:
            break
        leading.append(named.pop(name))
    with Calls() as calls, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = function(*leading, **named)
    return calls.ops, result


def test_common_ops_are_bound() -> None:
    common = {"add.Tensor", "addmm.default", "cat.default", "expand.default", "gelu.default"}
    assert {f"aten.{name}" for name in common} <= set(BOUND)
    assert len(BOUND) > 400


@pytest.mark.parametrize("left_out", ["", "defaults", "options"])
@pytest.mark.parametrize("kind", [kind for kind in BOUND if kind not in RESHAPES])
def test_it_calls_the_op(kind: str, left_out: str) -> None:
    for sample in samples_by_kind()[kind]:
        try:
            expected, result = called(kernel(kind), sample, left_out)
        except RuntimeError:
            # The other arguments of a sample may not fit without its options.
            assert left_out == "options"
            continue
        ops, found = called(fast_kernel(kind), sample, left_out)
        assert ops == expected
        torch.testing.assert_close(found, result, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", sorted(RESHAPES))
def test_views_take_operands_of_any_strides(kind: str) -> None:
    x = torch.arange(6).reshape(2, 3).T
    assert fast_kernel(kind)(x, [6]).tolist() == kernel(kind)(x, [6]).tolist()
