"""Which ops may be computed twice, and the op that does it.

What is left out may be anything (ops of other libraries), is no kernel of its own (control flow),
or can't be had again, as the rules of ops say (`ir.ops.repeating`).
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.ops.repeating import again
from autopar.ir.program import Op
from autopar.ir.rules.foreign import FUNCTIONAL, bare_kind

PLAN = "recompute"
"""The plan field of copies; its value is the first result of the op that they repeat."""

_OWN = ("aten", "autopar", "comm")


def repeated(op: Op) -> Op | None:
    """Returns the op that computes the results of a forward op again, or the first ones of them.

    None if the op must not be repeated.
    """
    if op.phase != "forward" or op.kind.startswith(FUNCTIONAL):
        return None
    if bare_kind(op.kind).partition(".")[0] not in _OWN or "." not in op.kind:
        return None
    copy = again(op)
    if copy is None:
        return None
    return replace(copy, phase="backward", plan=(*op.plan, (PLAN, op.results[0])))
