"""Ranks that measure together, and come to grief."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from autopar.calibration import calibrating
from autopar.calibration.device import DeviceFigures
from autopar.calibration.measure import ComputeRates
from autopar.runtime.job.processes import Processes

SETTINGS = calibrating.Settings("gloo", 0.001, "", "")
FIGURES = DeviceFigures(ComputeRates({"f32": 1e9}, 1e9, 1e-6), (), None, None)


def knows_its_device() -> None:
    """Spares the measurement of the device, which takes long."""
    calibrating.measure_device = lambda meter: FIGURES


def without_the_others(processes: Processes) -> Any:
    """Measures though the other ranks don't come."""
    calibrating.TIMEOUT = timedelta(seconds=0.5)
    return calibrating._on_rank(processes, SETTINGS)


def ends_between(processes: Processes) -> Any:
    """Measures while rank 1 ends before the links are measured."""
    knows_its_device()
    if processes.rank:
        calibrating.measure_links = lambda groups, device: os._exit(0)
    return calibrating._on_rank(processes, SETTINGS)


def finds_no_memory(processes: Processes) -> Any:
    """Measures while rank 1 has no memory for it."""
    knows_its_device()

    def none(groups: object, device: object) -> None:
        raise MemoryError("no memory")

    if processes.rank:
        calibrating.measure_links = none  # type: ignore[assignment]
    return calibrating._on_rank(processes, SETTINGS)
