"""Calibration: what this machine's devices and links really do, as a cluster file.

clocks       what seconds are of: those that pass, of the process, or of a GPU's stream
meter        the seconds of a call
measure      products, copies and collectives, on all ranks at once
operands     tensors to compute on, and calls with what they move
kernels      calls of each family of ops that memory bounds, and what they move
products     calls of each family of products, by classes of their shapes
op_rates     what a device reaches in these, from little work to much
host         what joins a device to the memory of its host
device       all of these figures, and those of the slowest rank
fit          latencies and times per byte from seconds, robust against stray ones
calibration  from the measurements to a cluster, with a report of how well it fits
calibrating  the processes that measure together
"""

from __future__ import annotations

from autopar.calibration.calibrating import calibrate
from autopar.calibration.calibration import Calibration
from autopar.calibration.fit import Fit, LinkSample, fit_link

__all__ = ["Calibration", "Fit", "LinkSample", "calibrate", "fit_link"]
