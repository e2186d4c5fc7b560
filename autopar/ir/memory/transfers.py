"""Transfers: how a program says that a tensor waits in its host's memory.

    %x.sent = autopar.offload(self=%x)                   a copy to the host is started
    %x.host = autopar.end_offload(self=%x.sent, of=%x)   it has arrived; until then %x is there
    ...
    %x.coming = autopar.reload(self=%x.host)             a copy to the device is started
    %x.back = autopar.end_reload(self=%x.coming)         it has arrived

What stands between start and end runs beside the transfer. Since the end of a transfer reads what
is sent, lifetimes are those of any other values.

A stored input that waits there is read by transfers alone, and its new content is sent over it:

    %w.coming = autopar.reload(self=%w)                  %w is in the host's memory
    %w.back = autopar.end_reload(self=%w.coming)
    ...
    %new.sent = autopar.offload(self=%new, over=%w)      which is what %w holds from then on
    %new.host = autopar.end_offload(self=%new.sent, of=%new)
"""

from __future__ import annotations

from autopar.ir.emitted import END_OFFLOAD, END_RELOAD, OFFLOAD, OVER, RELOAD
from autopar.ir.program import Function, refs

STARTED = (OFFLOAD, RELOAD)
"""Kinds that start a transfer; their results are copies."""

ENDED = (END_OFFLOAD, END_RELOAD)
"""Kinds that wait for one; their results are what it left."""

PLAN = "offload"
"""The plan field of transfers; its value is the name of the tensor."""


def hosted(function: Function) -> frozenset[str]:
    """Returns the inputs that wait in the host's memory: those that transfers read or write."""
    found: set[str] = set()
    for op in function.ops:
        if op.kind == RELOAD:
            found.update(op.operands)
        elif op.kind == OFFLOAD:
            found.update(ref.name for ref in refs(op.arg(OVER)))
    return frozenset(found.intersection(function.inputs))
