"""Finds the op of the program that raised an error in generated code."""

from __future__ import annotations

import linecache
import re
from types import FrameType

from torch import fx

from autopar.ir.program import Op


def failing_op(error: BaseException) -> Op | None:
    """Returns the innermost op on an error's traceback, or None if it wasn't raised by one.

    Each statement of generated code assigns one node to a variable of the node's name; the frame
    knows its module, whose nodes know their ops.
    """
    found: Op | None = None
    traceback = error.__traceback__
    while traceback is not None:
        found = _op_at(traceback.tb_frame, traceback.tb_lineno) or found
        traceback = traceback.tb_next
    return found


def op_on_line(module: fx.GraphModule, text: str) -> Op | None:
    """Returns the op that a line of a module's generated code carries out, if it does one."""
    assigned = re.match(r"\s*(\w+)\s*=", text)
    if assigned is None:
        return None
    for node in module.graph.nodes:
        if node.name == assigned[1]:
            op = node.meta.get("op")
            return op if isinstance(op, Op) else None
    return None


def _op_at(frame: FrameType, line: int) -> Op | None:
    module = frame.f_locals.get("self")
    if not isinstance(module, fx.GraphModule) or frame.f_code.co_name != "forward":
        return None
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals)
    return op_on_line(module, text)
