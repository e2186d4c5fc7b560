"""Calibration: what this machine's devices and links really do, as a cluster file.

measure     seconds of products, copies and collectives, on all ranks at once
fit         latencies and times per byte from seconds, robust against stray ones
calibrate   from the ranks' measurements to a cluster, with a report of how well it fits
"""

from __future__ import annotations

from autopar.calibration.calibrating import Calibration, calibrate
from autopar.calibration.fit import Fit, LinkSample, fit_link

__all__ = ["Calibration", "Fit", "LinkSample", "calibrate", "fit_link"]
