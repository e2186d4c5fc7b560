"""Profiles: what a program or module costs per op, per layer and over time, without running it.

figures   of ops and layers, in sum and over time
layers    which part of a model an op belongs to
measure   from modules, programs and builds to profiles
show      all of this as text
"""

from __future__ import annotations

from autopar.analysis.profiling.figures import Layer, Node, Profile
from autopar.analysis.profiling.measure import profile, profile_build, profile_compiled

__all__ = ["Layer", "Node", "Profile", "profile", "profile_build", "profile_compiled"]
