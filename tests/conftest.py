"""Settings of the whole test suite."""

from __future__ import annotations

import os
import signal

import hypothesis

# Before torch is imported: tests start several processes, and run in parallel themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run, and no time limit: machines differ, results must not.
hypothesis.settings.register_profile("autopar", derandomize=True, deadline=None)
hypothesis.settings.load_profile("autopar")

# A suite that is started in the background ignores these, and all that it starts does too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
