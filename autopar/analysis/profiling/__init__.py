"""Profiles: what a program or module costs per op, per layer and over time, without running it.

figures   of an op, and of a layer
layers    which part of a model an op belongs to
measure   from modules, programs and builds to profiles
show      all of this in sum and over time, and as text
"""

from __future__ import annotations

from autopar.analysis.profiling.figures import Layer, Node
from autopar.analysis.profiling.measure import profile, profile_build, profile_compiled
from autopar.analysis.profiling.show import Profile

__all__ = ["Layer", "Node", "Profile", "profile", "profile_build", "profile_compiled"]
