"""Devices that programs are compiled for, as torch calls their types."""

from __future__ import annotations

CPU, CUDA = "cpu", "cuda"

DEVICES = (CPU, CUDA)
"""All of them; `cuda` is what torch calls AMD's GPUs too."""


def type_of(device: object) -> str:
    """Returns the type of a device, of torch's own or said in a text."""
    return str(getattr(device, "type", device))
