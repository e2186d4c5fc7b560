"""Settings of the whole test suite."""

from __future__ import annotations

import os

import hypothesis

# Before torch is imported: tests start several processes, and run in parallel themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run, and no time limit: machines differ, results must not.
hypothesis.settings.register_profile("autopar", derandomize=True, deadline=None)
hypothesis.settings.load_profile("autopar")
