"""Device: all figures of a rank's device, and those of the slowest of all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist

from autopar.calibration.host import HostRates, measure_host, slowest_host
from autopar.calibration.measure import ComputeRates, measure_compute
from autopar.calibration.meter import Meter
from autopar.calibration.op_rates import measure_fresh_memory, measure_op_rates
from autopar.cost.rates import FreshMemory, OpRate


@dataclass(frozen=True)
class DeviceFigures:
    """What a device reaches.

    Attributes:
        rates: In products, copies, and starting ops.
        op_rates: In families of ops.
        fresh_memory: What memory takes that comes from the system.
        host: What it and its host take; None where it is the host.
    """

    rates: ComputeRates
    op_rates: tuple[OpRate, ...]
    fresh_memory: FreshMemory | None
    host: HostRates | None


def measure_device(meter: Meter) -> DeviceFigures:
    """Returns what a device reaches, while all other ranks measure the same."""
    device = meter.device
    return DeviceFigures(
        measure_compute(meter),
        measure_op_rates(meter),
        measure_fresh_memory(meter),
        None if device.type == "cpu" else measure_host(device, meter.seconds),
    )


def slowest(own: DeviceFigures, ranks: int) -> DeviceFigures:
    """Returns the figures of the slowest rank, for which all others wait.

    All ranks call it.

    Args:
        own: What this rank measured.
        ranks: How many there are.
    """
    found: list[DeviceFigures] = [own] * ranks
    dist.all_gather_object(found, own)
    hosts = [each.host for each in found if each.host is not None]
    return DeviceFigures(
        _slowest_rates([each.rates for each in found]),
        slowest_op_rates([each.op_rates for each in found]),
        _slowest_memory(each.fresh_memory for each in found),
        slowest_host(hosts) if hosts else None,
    )


def _slowest_rates(found: Sequence[ComputeRates]) -> ComputeRates:
    dtypes = set(found[0].flops_per_second).intersection(*(each.flops_per_second for each in found))
    return ComputeRates(
        {name: min(each.flops_per_second[name] for each in found) for name in sorted(dtypes)},
        min(each.bytes_per_second for each in found),
        max(each.launch_seconds for each in found),
    )


def slowest_op_rates(found: Sequence[Sequence[OpRate]]) -> tuple[OpRate, ...]:
    """Returns the rates at which all ranks measured, at the works that all of them measured.

    The slower a rank is, the less work it measures at most.
    """
    by_class = [_by_class(rates) for rates in found]
    slow = []
    for key, rate in by_class[0].items():
        others = [dict(rates[key].rates) for rates in by_class if key in rates]
        works = [work for work, _ in rate.rates if all(work in each for each in others)]
        if works and len(others) == len(found):
            least = tuple((work, min(each[work] for each in others)) for work in works)
            slow.append(replace(rate, rates=least))
    return tuple(slow)


def _by_class(rates: Sequence[OpRate]) -> dict[tuple[str, str, int], OpRate]:
    """Returns the rates by family, dtype, and number of the class of shapes."""
    found: dict[tuple[str, str, int], OpRate] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for rate in rates:
        found[rate.family, rate.dtype, seen[rate.family, rate.dtype]] = rate
        seen[rate.family, rate.dtype] += 1
    return found


def _slowest_memory(found: Iterable[FreshMemory | None]) -> FreshMemory | None:
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.seconds_per_byte) if known else None
