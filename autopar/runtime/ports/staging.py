"""Moves tensors of the host to a rank's device, which goes on with what it is busy with.

A copy from memory that isn't pinned ends before the call returns, and so does all that the device
was told before. A training step would wait for the last one, only to get its learning rate.
"""

from __future__ import annotations

import torch
from torch import Tensor


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Returns a tensor on a device.

    Args:
        tensor: The tensor, which may change as soon as it has been moved.
        device: The device.
    """
    target = torch.device(device)
    if target.type == "cpu" or not tensor.is_cpu:
        return tensor.to(target)
    # The allocator of pinned memory keeps it until the device has read it.
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor).to(target, non_blocking=True)
