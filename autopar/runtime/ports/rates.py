"""Learning rates among a program's inputs: which inputs they are, and whether there is one.

Trainers set them, and calls leave them out; only training steps have them.
"""

from __future__ import annotations

import re

from autopar.ir.program import Port, Program

_RATE = re.compile(r"lr(\.\d+)?")


def is_rate(port: Port) -> bool:
    """Returns whether an input is a learning rate: `lr`, or `lr.0` of the first group, ..."""
    known = port.role == "input" and port.shape == () and port.fill is not None
    return known and bool(_RATE.fullmatch(port.label))


def trains(program: Program) -> bool:
    """Returns whether a program is a training step, which has a learning rate."""
    return any(map(is_rate, program.signature.inputs))
