"""Where in the user's code a node of an exported graph comes from."""

from __future__ import annotations

import os
import re

from torch import fx

from autopar.base.errors import UNKNOWN, Loc
from autopar.base.package import PACKAGE

_FRAME = re.compile(r'File "(.*)", line (\d+), in (.*)')

_OWN = str(PACKAGE / "annotate") + os.sep
"""Where the functions are with which users mark their models."""


def source_line(node: fx.Node) -> Loc:
    """Returns the innermost line of the user's code that torch noted for a node, if any."""
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    frames = [frame for frame in found if not frame[0].startswith(_OWN)]
    if not frames:
        return UNKNOWN
    file, line, function = frames[-1]
    return Loc(file, int(line), function)
