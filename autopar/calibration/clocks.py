"""Clocks: what measured seconds are of.

wall     what passes, with the wait for the device
cpu      what this process computes: nothing that other programs take away is counted
events   what passes on a GPU, by events in its stream: nothing of the wait for it is counted
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from autopar.base.errors import InvalidInputError
from autopar.ir.devices import CPU, CUDA

Clock = Callable[[], float]
"""Returns seconds when the device has done all that it was told to."""


def _wall(device: torch.device) -> Clock:
    def now() -> float:
        finish(device)
        return time.perf_counter()

    return now


def _cpu(device: torch.device) -> Clock:
    return time.process_time


def _events(device: torch.device) -> Clock:
    def recorded() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    begin = recorded()

    def now() -> float:
        end = recorded()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return now


_CLOCKS: Mapping[str, tuple[Callable[[torch.device], Clock], tuple[str, ...]]] = {
    "wall": (_wall, (CPU, CUDA)),
    "cpu": (_cpu, (CPU,)),
    "events": (_events, (CUDA,)),
}
"""The clocks, and the devices that they tell the seconds of."""

CLOCKS = tuple(_CLOCKS)


def clock_of(name: str, device: torch.device) -> Clock:
    """Returns a clock.

    Args:
        name: One of `CLOCKS`; by default `events` on a GPU, and `wall` elsewhere.
        device: What is measured.

    Raises:
        InvalidInputError: If there is no such clock, or it can't tell the seconds of the device.
    """
    chosen = name or ("events" if device.type == CUDA else "wall")
    if chosen not in CLOCKS:
        raise InvalidInputError(f"no clock {name!r}: there are {', '.join(CLOCKS)}")
    make, devices = _CLOCKS[chosen]
    if device.type not in devices:
        known = ", ".join(name for name, (_, types) in _CLOCKS.items() if device.type in types)
        raise InvalidInputError(
            f"the clock {chosen!r} can't tell what {device.type} takes; use {known}"
        )
    return make(device)


def finish(device: torch.device) -> None:
    """Waits until a device has done all that it was told to."""
    if device.type == CUDA:
        torch.cuda.synchronize(device)
