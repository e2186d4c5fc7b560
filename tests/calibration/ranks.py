"""Ranks that measure together, and come to grief."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from autopar.calibration import calibrating
from autopar.runtime.job.processes import Processes

SETTINGS = calibrating.Settings("gloo", 0.02, "", "")


def without_the_others(processes: Processes) -> Any:
    """Measures though the other ranks don't come."""
    calibrating.TIMEOUT = timedelta(seconds=0.5)
    return calibrating._on_rank(processes, SETTINGS)


def ends_between(processes: Processes) -> Any:
    """Measures while rank 1 ends before the links are measured."""
    if processes.rank:
        calibrating.measure_links = lambda groups, device: os._exit(0)
    return calibrating._on_rank(processes, SETTINGS)


def finds_no_memory(processes: Processes) -> Any:
    """Measures while rank 1 has no memory for it."""

    def none(groups: object, device: object) -> None:
        raise MemoryError("no memory")

    if processes.rank:
        calibrating.measure_links = none  # type: ignore[assignment]
    return calibrating._on_rank(processes, SETTINGS)
