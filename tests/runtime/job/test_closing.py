"""What a script leaves open is closed at its end, by the process that opened it."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os, sys
from autopar.runtime.job.closing import Closing, close_at_exit

class Opened(Closing):
    def close(self):
        print("closed", flush=True)

opened = Opened()
close_at_exit(opened)
if child := os.fork():
    print(os.waitpid(child, 0)[1], flush=True)
"""


def test_a_process_that_was_forked_off_closes_nothing_at_its_end() -> None:
    found = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True)
    assert found.stdout.split() == ["0", "closed"], found
