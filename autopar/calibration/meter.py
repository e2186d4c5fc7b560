"""Meter: the seconds of a call on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from autopar.calibration.clocks import Clock

Call = Callable[[], object]

SLICES, CALLS = 5, 50
"""Slices of a measurement, and calls between looks at whether the device is done."""


@dataclass(frozen=True)
class Meter:
    """Measures calls on a device.

    Attributes:
        device: The device.
        clock: What the seconds are of.
        seconds: About how long each measurement may take.
        slices: Into how many slices of time it is divided.
    """

    device: torch.device
    clock: Clock
    seconds: float
    slices: int = SLICES

    def shorter(self, parts: int) -> Meter:
        """Returns a meter for many measurements, each of which is a part as long."""
        return replace(self, seconds=self.seconds / parts, slices=3)

    def seconds_of(self, calls: Sequence[Call]) -> float:
        """Returns the seconds of a call: the median over slices of time, each of many calls.

        A slice is longer than the turns that processes take on a core, so what a call takes is what
        it takes under load.

        Args:
            calls: What is called in turn: the same, on other operands each.
        """
        for call in calls:
            call()
        turns, found = cycle(calls), []
        for _ in range(self.slices):
            count, begin, start = 0, time.perf_counter(), self.clock()
            while time.perf_counter() - begin < self.seconds / self.slices or not count:
                next(turns)()
                count += 1
                if count % CALLS == 0:
                    self.clock()
            found.append((self.clock() - start) / count)
        return statistics.median(found)
