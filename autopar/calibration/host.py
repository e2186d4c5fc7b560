"""Host: what joins a device to the memory of its host, and what the host reaches there itself."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.calibration.measure import copy_rate, median_seconds
from autopar.runtime.collectives.host_transfers import end_offload, end_reload, offload, reload

TRANSFERRED_BYTES = (1 << 12, 1 << 26)
"""Bytes of measured transfers: few for the latency, many for the time per byte."""

COMPUTED_BYTES = 1 << 26
"""Bytes that the host computes of: more than its caches hold."""

LEAST_SECONDS = 1e-9


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
    few, many = (
        median_seconds(
            partial(_there_and_back, torch.ones(size // 4, device=device)), device, seconds
        )
        for size in TRANSFERRED_BYTES
    )
    beta = max(many - few, LEAST_SECONDS) / 2 / (most - least)
    alpha = max(few / 2 - beta * least, LEAST_SECONDS)
    return HostRates(alpha, beta, 1 / copy_rate(torch.device("cpu"), COMPUTED_BYTES, seconds))


def slowest(rates: HostRates, device: torch.device) -> HostRates:
    """Returns what the slowest rank takes, for which all others wait."""
    most = torch.tensor(astuple(rates), dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return HostRates(*most.tolist())


def _there_and_back(tensor: Tensor) -> None:
    there = end_offload(offload(tensor), tensor)
    end_reload(reload(there, device=tensor.device))
