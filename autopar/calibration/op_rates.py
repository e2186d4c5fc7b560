"""Op rates: what a device reaches in each family of ops, from little work to much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product

import torch

from autopar.calibration.kernels import MOVING
from autopar.calibration.meter import Meter
from autopar.calibration.operands import Kernel, Maker
from autopar.calibration.products import PRODUCTS
from autopar.cost.rates import FreshMemory, OpRate
from autopar.ir.dtypes import FLOATS
from autopar.runtime.kernels.table import TORCH_DTYPES

ELEMENTS = {
    "cpu": (1 << 10, 1 << 14, 1 << 18, 1 << 22),
    "cuda": (1 << 14, 1 << 18, 1 << 22, 1 << 26),
}
"""Of the largest operand of what is bound by memory."""

OPERATIONS = {
    "cpu": (1 << 16, 1 << 21, 1 << 26, 1 << 30),
    "cuda": (1 << 24, 1 << 28, 1 << 32, 1 << 36),
}
"""Of products."""

PARTS = 8
"""A rate is measured for so much shorter than one of the figures of a device as a whole."""

MOST_OPERANDS, TURNS_BYTES = 16, {"cpu": 1 << 27, "cuda": 1 << 28}
"""As many sets of operands are used in turn, so that a cache doesn't hold them all."""

CACHE_BYTES = 1 << 22
"""What any cache holds that counts."""

MOST_BYTES = {"cpu": 1 << 27, "cuda": 1 << 32}
"""What a call may move: no result is so large that its memory is fresh each time."""

FRESH_BYTES = (1 << 22, 1 << 24, 1 << 26)
"""Of tensors whose memory is timed."""

LEAST_FRESH = 0.2
"""Of the time of a fill, what fresh memory adds at least if it does."""


def measure_op_rates(meter: Meter) -> tuple[OpRate, ...]:
    """Returns what a device reaches, while all other ranks measure the same.

    Where a device has no op for a dtype there is no rate of it.
    """
    return tuple(_rates(meter.shorter(PARTS)))


def _rates(meter: Meter) -> Iterator[OpRate]:
    kind = meter.device.type
    for family, moving in MOVING.items():
        found = _measured(meter, partial(moving, Maker(meter.device)), ELEMENTS[kind])
        if found:
            rates = [(float(each.nbytes), each.nbytes / seconds) for each, seconds in found]
            yield OpRate(family, _ascending(rates))
    for (family, shapes), dtype in product(PRODUCTS.items(), FLOATS):
        for size in shapes.classes:
            make = partial(shapes.make, Maker(meter.device, TORCH_DTYPES[dtype]), size)
            found = _measured(meter, make, OPERATIONS[kind])
            if found:
                rates = [(each.flops, each.flops / seconds) for each, seconds in found]
                intensity = found[-1][0].flops / found[-1][0].nbytes
                yield OpRate(family, _ascending(rates), dtype, intensity)


def _ascending(rates: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Returns the rates without those of works that are rounded to the same."""
    return tuple(sorted(dict(rates).items()))


def _measured(
    meter: Meter, make: Callable[[int], Kernel], sizes: Sequence[int]
) -> list[tuple[Kernel, float]]:
    """Returns kernels of several sizes with the seconds of an op of each.

    It ends where a call would take longer than a measurement is to.
    """
    found: list[tuple[Kernel, float]] = []
    last = 0.0
    try:
        for before, size in pairwise((sizes[0], *sizes)):
            kernel = None if last * size / before > meter.seconds else make(size)
            if kernel is None or kernel.nbytes > MOST_BYTES[meter.device.type]:
                break
            count = _turns(kernel.nbytes * kernel.times, meter.device)
            others = [make(size).call for _ in range(count - 1)]
            last = meter.seconds_of([kernel.call, *others])
            found.append((kernel, last / kernel.times))
    except (RuntimeError, NotImplementedError):
        return []
    return found


def _turns(nbytes: int, device: torch.device) -> int:
    """Returns how many sets of operands are used in turn: one where a cache holds all anyway."""
    if nbytes * MOST_OPERANDS < CACHE_BYTES:
        return 1
    return max(1, min(MOST_OPERANDS, TURNS_BYTES[device.type] // nbytes))


def measure_fresh_memory(meter: Meter) -> FreshMemory | None:
    """Returns what memory takes that comes from the system; None where it takes nothing."""
    known = torch.empty(FRESH_BYTES[-1] // 4, device=meter.device)
    fill = meter.seconds_of([lambda: known.fill_(1.0)]) / FRESH_BYTES[-1]
    per_byte = [
        meter.seconds_of([partial(_fill_fresh, size // 4, meter.device)]) / size - fill
        for size in FRESH_BYTES
    ]
    if per_byte[-1] < LEAST_FRESH * fill:
        return None
    first = next(at for at, each in enumerate(per_byte) if each >= per_byte[-1] / 2)
    # Between the sizes of which the one is handed out again, and the other is fresh.
    return FreshMemory(FRESH_BYTES[first] / 2, per_byte[-1])


def _fill_fresh(elements: int, device: torch.device) -> None:
    torch.empty(elements, device=device).fill_(1.0)
