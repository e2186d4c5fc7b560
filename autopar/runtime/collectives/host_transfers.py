"""Transfers between a device's memory and its host's, beside what the device computes.

Each device has a stream per direction. A transfer waits for what was computed before it starts, and
what is computed after its end waits for it, so tensors are there when they are read and memory is
given back when nobody reads it any more. On the CPU a transfer is a plain copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autopar.ir.emitted import END_OFFLOAD, END_RELOAD, OFFLOAD, RELOAD


def offload(self: Tensor) -> Tensor:
    """Starts the copy of a tensor to the host, and returns where it arrives.

    Args:
        self: The tensor; it must stay until `end_offload`.
    """
    if self.device.type == "cpu":
        return self.clone()
    # Pinned memory, which the device reads and writes without the processor.
    host = torch.empty_like(self, device="cpu", pin_memory=True)
    return _copied(self, host, self.device, OFFLOAD)


def end_offload(self: Tensor, of: Tensor) -> Tensor:
    """Waits for the copy of `of` to the host, and returns it."""
    _wait(of.device, OFFLOAD)
    return self


def reload(self: Tensor, *, device: torch.device | str = "cpu") -> Tensor:
    """Starts the copy of a tensor on the host to a device, and returns where it arrives.

    Args:
        self: The tensor.
        device: The device; the code of ranks on CPUs names none.
    """
    target = torch.device(device)
    if target.type == "cpu":
        return self.clone()
    arriving = torch.empty_like(self, device=target)
    return _copied(self, arriving, arriving.device, RELOAD)


def end_reload(self: Tensor) -> Tensor:
    """Waits for the copy of a tensor to the device, and returns it."""
    _wait(self.device, RELOAD)
    return self


TRANSFERS: Mapping[str, Callable[..., Any]] = {
    OFFLOAD: offload,
    END_OFFLOAD: end_offload,
    RELOAD: reload,
    END_RELOAD: end_reload,
}
"""The function behind each op kind."""


def _copied(source: Tensor, target: Tensor, device: torch.device, kind: str) -> Tensor:
    """Starts a copy behind all that the device was told to do so far; returns the target."""
    module = torch.get_device_module(device)
    beside = _stream(device, kind)
    beside.wait_stream(module.current_stream(device))
    with module.stream(beside):
        # The allocator of pinned memory keeps what such a copy reads until it is done.
        target.copy_(source, non_blocking=True)
    return target


def _wait(device: torch.device, kind: str) -> None:
    """Makes what the device is told from now on wait for the transfers of a direction."""
    if device.type != "cpu":
        torch.get_device_module(device).current_stream(device).wait_stream(_stream(device, kind))


@cache
def _stream(device: torch.device, kind: str) -> Any:
    """Returns the stream of a direction: one per device, as its copy engines are."""
    return torch.get_device_module(device).Stream(device=device)
