"""Transfers: how a program says that a tensor waits in its host's memory.

    %x.sent = autopar.offload(self=%x)                   a copy to the host is started
    %x.host = autopar.end_offload(self=%x.sent, of=%x)   it has arrived; until then %x is there
    ...
    %x.coming = autopar.reload(self=%x.host)             a copy to the device is started
    %x.back = autopar.end_reload(self=%x.coming)         it has arrived

What stands between start and end runs beside the transfer. Since the end of a transfer reads what
is sent, lifetimes are those of any other values.
"""

from __future__ import annotations

from autopar.ir.emitted import END_OFFLOAD, END_RELOAD, OFFLOAD, RELOAD

STARTED = (OFFLOAD, RELOAD)
"""Kinds that start a transfer; their results are copies."""

ENDED = (END_OFFLOAD, END_RELOAD)
"""Kinds that wait for one; their results are what it left."""

PLAN = "offload"
"""The plan field of transfers; its value is the name of the tensor."""
