"""Where in the user's code a node of an exported graph comes from."""

from __future__ import annotations

import re

from torch import fx

from autopar.ir.errors import UNKNOWN, Loc

_FRAME = re.compile(r'File "(.*)", line (\d+), in (.*)')


def source_line(node: fx.Node) -> Loc:
    """Returns the innermost line of the user's code that torch noted for a node, if any."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return UNKNOWN
    file, line, function = frames[-1]
    return Loc(file, int(line), function)
