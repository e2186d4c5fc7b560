"""Ends a process with its parent, which can't do so itself when it is killed.

python -m autopar.runtime.job.parent MODULE ARGUMENT...     runs a module so
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """Lets this process be sent a signal when its parent ends. Does nothing but on Linux.

    Args:
        number: The signal.
    """
    parent = os.getppid()
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    # It may have ended just before.
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
