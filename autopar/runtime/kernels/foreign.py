"""Kernels around the ops of others that draw random numbers of their own, or write to operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autopar.runtime.kernels.random_bits import stream
from autopar.runtime.ports.nested import tensors_in

Kernel = Callable[..., Any]


def seeded(kernel: Kernel) -> Kernel:
    """Returns a kernel that runs with torch's generator set by `seed` and `number`.

    The generator is afterwards what it was before. So all processes draw the same, as the serial
    program does, if their devices are of one kind.
    """

    def run(*args: Any, seed: Tensor, number: int, **kwargs: Any) -> Any:
        devices = [] if seed.device.type == "cpu" else [seed.device]
        with torch.random.fork_rng(devices, device_type=_kind_of(seed.device)):
            torch.manual_seed(stream(int(seed), number))
            return kernel(*args, **kwargs)

    return run


def foreign(kernel: Kernel, schema: Any, functional: bool = False) -> Kernel:
    """Returns a kernel around an op of another library, which may rely on what torch promises.

    Its operands are dense, as most are in the model, whose strides a program doesn't keep.

    Args:
        kernel: The op.
        schema: Its schema, which says what it writes to.
        functional: Whether it writes to copies of its operands.

    Returns:
        A function of the same arguments, which returns all tensors among the op's results; if
        functional, behind them the new content of each tensor that the op writes to, in the order
        of the arguments. A single one is returned by itself.
    """
    names = [argument.name for argument in schema.arguments]
    written = [argument.name for argument in schema.arguments if argument.is_write]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        given = {name: _dense(value, name in written) for name, value in given.items()}
        found = kernel(**given)
        contents = [tensor for name in written for tensor in tensors_in(given.get(name))]
        results = (*tensors_in(found), *(contents if functional else ()))
        return results[0] if len(results) == 1 else results

    return run


def _kind_of(device: torch.device) -> str:
    return "cuda" if device.type == "cpu" else device.type


def _dense(value: Any, copied: bool) -> Any:
    if isinstance(value, (list, tuple)):
        return [_dense(item, copied) for item in value]
    if isinstance(value, Tensor):
        dense = torch.contiguous_format
        return value.clone(memory_format=dense) if copied else value.contiguous()
    return value
