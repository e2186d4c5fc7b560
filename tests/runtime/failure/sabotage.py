"""Lets one rank come to grief; imported by the ranks that tests start.

What happens where is said in the environment, as `AUTOPAR_TEST_FAULT=VICTIM PLACE HOW FILE`: in
FILE the victim notes when.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autopar.runtime.checkpoint import checkpoint
from autopar.runtime.execute import connection, distributed, generate, sized

VARIABLE = "AUTOPAR_TEST_FAULT"
PLACES = ("start", "handshake", "load", "step", "between", "gather", "save", "close")
HOWS = ("kill", "stop", "spin", "sleep", "raise", "exit")
NEG = "aten.neg.default"
COMPUTED = (NEG, "aten.gelu.default")
"""Ops of the programs that faults are injected into."""


class Fault:
    """What happens to a rank.

    Args:
        victim: The rank.
        place: One of `PLACES`.
        how: One of `HOWS`.
        file: Where it notes when.
    """

    def __init__(self, victim: str, place: str, how: str, file: str) -> None:
        self.is_victim = os.environ.get("RANK") == victim
        self.place = place
        self.how = how
        self.file = Path(file)

    def at(self, place: str) -> None:
        """Happens, if this is the rank and the place."""
        if self.is_victim and place == self.place:
            self.file.write_text(str(time.time()))
            if self.how == "raise":
                raise ValueError("out of luck")
            if self.how == "exit":
                sys.exit(3)
            if self.how in ("kill", "stop"):
                os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)
            while self.how != "stop":
                if self.how == "sleep":
                    time.sleep(60)

    def before(self, place: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with the fault before it."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.at(place)
            return function(*args, **kwargs)

        return wrapped


def arm(fault: Fault) -> None:
    """Puts a fault where it may happen in this process."""
    fault.at("start")
    connection.shake_hands = fault.before("handshake", connection.shake_hands)
    distributed.read_weights = fault.before("load", distributed.read_weights)
    checkpoint.write_rectangles = fault.before("save", checkpoint.write_rectangles)
    close = fault.before("close", distributed.JobRank.close)
    distributed.JobRank.close = close  # type: ignore[method-assign]
    gather = fault.before("gather", sized.Gathering.outputs)
    sized.Gathering.outputs = gather  # type: ignore[method-assign]
    kernel = generate.fast_kernel
    generate.fast_kernel = lambda kind: (
        fault.before("step", kernel(kind)) if kind in COMPUTED else kernel(kind)
    )


FAULT = Fault(*os.environ.get(VARIABLE, "- - - -").split())
if VARIABLE in os.environ:
    arm(FAULT)
