"""Measure: seconds of products, copies and collectives, on all ranks at once.

All ranks measure the same at the same time, so processes that share cores or links are measured
under the load that a program puts on them. Collectives are those of the runtime, so what it does
for a backend is part of what is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from autopar.calibration.clocks import finish
from autopar.calibration.fit import LinkSample
from autopar.calibration.meter import Meter
from autopar.cost.algorithms import POINT_TO_POINT
from autopar.ir.dtypes import FLOATS
from autopar.runtime.collectives.communication import (
    all_gather,
    all_to_all,
    broadcast,
    permute,
    reduce_scatter,
)
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.reducing import all_reduce
from autopar.runtime.kernels.table import TORCH_DTYPES

PRODUCT_SIZES = {"cpu": (256, 512), "cuda": (1024, 4096)}
COPY_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}
COLLECTIVE_BYTES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
"""Bytes of the full tensor of measured collectives."""

REPEATS = 7
"""How often a collective is run."""


@dataclass(frozen=True)
class ComputeRates:
    """What a device reaches.

    Attributes:
        flops_per_second: Of matrix products, by dtype.
        bytes_per_second: Of elementwise ops, read and written.
        launch_seconds: Of an op on a few elements.
    """

    flops_per_second: dict[str, float]
    bytes_per_second: float
    launch_seconds: float


def measure_compute(meter: Meter) -> ComputeRates:
    """Returns what a device reaches, while all other ranks measure the same."""
    flops = {name: _product_rate(meter, TORCH_DTYPES[name]) for name in FLOATS}
    copied = copy_rate(meter, COPY_BYTES[meter.device.type])
    few = torch.ones(16, device=meter.device)
    launch = meter.seconds_of([lambda: few + few])
    return ComputeRates({name: rate for name, rate in flops.items() if rate}, copied, launch)


def _product_rate(meter: Meter, dtype: torch.dtype) -> float:
    """Returns flop/s of the best size; 0 where the device has no such product."""
    best = 0.0
    for size in PRODUCT_SIZES[meter.device.type]:
        try:
            a = torch.ones(size, size, device=meter.device, dtype=dtype)
            taken = meter.seconds_of([partial(torch.matmul, a, a)])
        except (RuntimeError, NotImplementedError):
            return 0.0
        best = max(best, 2 * size**3 / taken)
    return best


def copy_rate(meter: Meter, nbytes: int) -> float:
    """Returns the bytes per second that an op on elements reads and writes.

    Args:
        meter: Measures where it runs.
        nbytes: Of each of its operands, and of its result.
    """
    x = torch.ones(nbytes // 4, device=meter.device)
    return 3 * nbytes / meter.seconds_of([lambda: x + x])


def measure_links(groups: Sequence[Group], device: torch.device) -> list[LinkSample]:
    """Returns the seconds of collectives in groups that all ranks form at once.

    Args:
        groups: The rank's groups, of the sizes to measure.
        device: The rank's device.
    """
    found: list[tuple[str, int, int, float]] = []
    for group in groups:
        for kind, nbytes, run in _runs(group, device):
            found.append((kind, group.size, nbytes, _collective_seconds(run, device)))
    seconds = torch.tensor([each[3] for each in found], dtype=torch.float64, device=device)
    # A collective is done when the last member is.
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return [
        LinkSample(kind, members, nbytes, slowest)
        for (kind, members, nbytes, _), slowest in zip(found, seconds.tolist(), strict=True)
    ]


def _collective_seconds(run: Callable[[], object], device: torch.device) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        run()
        finish(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _runs(group: Group, device: torch.device) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yields the collectives to measure: kind, bytes of the full tensor, a call."""
    for nbytes in COLLECTIVE_BYTES:
        for kind, run in _calls(group, device, nbytes // 4 // group.size).items():
            yield kind, nbytes, run


def _calls(group: Group, device: torch.device, rows: int) -> dict[str, Callable[[], object]]:
    """Returns the collectives on tensors of which each member's piece has so many elements."""
    size = rows * group.size
    full, piece = torch.ones(size, device=device), torch.ones(rows, device=device)
    square = torch.ones(group.size, rows, device=device)
    calls: dict[str, Callable[[], object]] = {
        "all_gather": lambda: all_gather(piece, 0, size, group),
        "all_to_all": lambda: all_to_all(square, 0, 1, size, group),
        "all_reduce": lambda: all_reduce(full, "sum", group),
        "reduce_scatter": lambda: reduce_scatter(full, 0, "sum", group),
        "broadcast": lambda: broadcast(full, 0, group),
    }
    if group.size % 2 == 0 and group.size > 2:
        sizes = (group.size // 2, 2)
        calls[POINT_TO_POINT] = lambda: permute(full, sizes, (1, 0), group)
    return calls
