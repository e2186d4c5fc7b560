"""Host: what joins a device to the memory of its host, and what the host reaches there itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial

import torch
from torch import Tensor

from autopar.calibration.clocks import clock_of
from autopar.calibration.measure import copy_rate
from autopar.calibration.meter import Meter
from autopar.runtime.collectives.host_transfers import end_offload, end_reload, offload, reload

TRANSFERRED_BYTES = (1 << 12, 1 << 26)
"""Bytes of measured transfers: few for the latency, many for the time per byte."""

COMPUTED_BYTES = 1 << 26
"""Bytes that the host computes of: more than its caches hold."""

LEAST_SECONDS = 1e-9

CPU_DEVICE = torch.device("cpu")


@dataclass(frozen=True)
class HostRates:
    """What a device and its host take.

    Attributes:
        alpha_seconds: Of a transfer in one direction, besides its bytes.
        beta_seconds_per_byte: Of each byte of it.
        seconds_per_byte: Of the host, for each byte that an elementwise op reads or writes.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    seconds_per_byte: float


def measure_host(device: torch.device, seconds: float) -> HostRates:
    """Returns what a device and its host take, while all other ranks measure the same.

    Args:
        device: The rank's device.
        seconds: About how long each measurement may take.
    """
    least, most = TRANSFERRED_BYTES
    meter = Meter(device, clock_of("wall", device), seconds)
    host = Meter(CPU_DEVICE, clock_of("wall", CPU_DEVICE), seconds)
    few, many = (
        meter.seconds_of([partial(_there_and_back, torch.ones(size // 4, device=device))])
        for size in TRANSFERRED_BYTES
    )
    beta = max(many - few, LEAST_SECONDS) / 2 / (most - least)
    alpha = max(few / 2 - beta * least, LEAST_SECONDS)
    return HostRates(alpha, beta, 1 / copy_rate(host, COMPUTED_BYTES))


def slowest_host(found: Sequence[HostRates]) -> HostRates:
    """Returns what the slowest rank takes, for which all others wait."""
    return HostRates(*map(max, *map(astuple, found))) if len(found) > 1 else found[0]


def _there_and_back(tensor: Tensor) -> None:
    there = end_offload(offload(tensor), tensor)
    end_reload(reload(there, device=tensor.device))
