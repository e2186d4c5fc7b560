"""Transfers between a device's memory and its host's, beside what the device computes.

Each device has a stream per direction. A transfer waits for what was computed before it starts, and
what is computed after its end waits for it alone, so tensors are there when they are read and
memory is given back when nobody reads it any more. On the CPU a transfer is a plain copy.

What the host computes runs where the code comes to it, on the thread that tells the device what to
do. It waits for the transfers from and to what it reads and for nothing else: the device goes on
with what it was told before, and so do all transfers that were started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from autopar.ir.emitted import END_OFFLOAD, END_RELOAD, OFFLOAD, RELOAD


def offload(self: Tensor, over: Tensor | None = None) -> Tensor:
    """Starts the copy of a tensor to the host, and returns where it arrives.

    Args:
        self: The tensor; it must stay until `end_offload`.
        over: The stored input of which it is new content; it stays as it is.
    """
    if self.device.type == "cpu":
        return self.clone()
    return _copied(self, _pinned_like(self), self.device, OFFLOAD)


def offload_over(self: Tensor, over: Tensor) -> Tensor:
    """Starts the copy of a tensor over another one on the host, and returns that."""
    if self.device.type == "cpu":
        return over.copy_(self)
    return _copied(self, over, self.device, OFFLOAD)


def end_offload(self: Tensor, of: Tensor) -> Tensor:
    """Waits for the copy of `of` to the host, and returns it."""
    _wait(self, of.device)
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
    # What the host computed may be in memory that devices don't reach by themselves.
    source = self if self.is_pinned() else pinned(self)
    return _copied(source, arriving, arriving.device, RELOAD)


def end_reload(self: Tensor) -> Tensor:
    """Waits for the copy of a tensor to the device, and returns it."""
    _wait(self, self.device)
    return self


TRANSFERS: Mapping[str, Callable[..., Any]] = {
    OFFLOAD: offload,
    END_OFFLOAD: end_offload,
    RELOAD: reload,
    END_RELOAD: end_reload,
}
"""The function behind each op kind."""


def pinned(tensor: Tensor) -> Tensor:
    """Returns a tensor of the host in memory that devices reach without the processor."""
    return _pinned_like(tensor).copy_(tensor)


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what computes on the host, once what it is given is there.

    Args:
        function: Computes of tensors in the host's memory, and may write over them.
    """

    def computed(*args: Any, **kwargs: Any) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and (copied := _copies.pop(tensor, None)) is not None:
                copied.synchronize()
        return function(*args, **kwargs)

    return computed


def settle(device: torch.device) -> None:
    """Waits until all that a device was told to copy to the host is there."""
    if device.type != "cpu":
        _stream(device, OFFLOAD).synchronize()


def _pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=True)


_arrivals: MutableMapping[Tensor, Any] = WeakIdKeyDictionary()
"""The event that ends the transfer to each tensor that is under way."""

_copies: MutableMapping[Tensor, Any] = WeakIdKeyDictionary()
"""The event that ends the last transfer from or to each tensor of the host, until it computes."""


def _copied(source: Tensor, target: Tensor, device: torch.device, kind: str) -> Tensor:
    """Starts a copy behind all that the device was told to do so far; returns the target."""
    module = torch.get_device_module(device)
    beside = _stream(device, kind)
    beside.wait_stream(module.current_stream(device))
    with module.stream(beside):
        # The allocator of pinned memory keeps what such a copy reads until it is done.
        target.copy_(source, non_blocking=True)
    _arrivals[target] = ended = beside.record_event()
    _copies[source if kind == RELOAD else target] = ended
    return target


def _wait(target: Tensor, device: torch.device) -> None:
    """Makes what the device is told from now on wait for the transfer to a tensor."""
    if device.type != "cpu":
        arrival = _arrivals.pop(target)
        torch.get_device_module(device).current_stream(device).wait_event(arrival)


@cache
def _stream(device: torch.device, kind: str) -> Any:
    """Returns the stream of a direction: one per device, as its copy engines are."""
    return torch.get_device_module(device).Stream(device=device)
