"""Reaching whoever serves the store, and noticing that it has ended.

Left to itself, torch's client asks again in seconds, and then in more seconds, whether the store is
there. So it misses one that came and ended meanwhile, and goes on asking after the time is up. Here
torch connects when somebody listens, and a second connection tells when nobody does any more.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from autopar.runtime.job.closing import Closing
from autopar.runtime.job.patience import Patience

_ATTEMPT = 1.0
"""Seconds that a host has to answer that somebody listens, before it is asked again."""


class Line(Closing):
    """A connection to the place where a store is served; nothing is sent over it.

    Args:
        address, port: The place.

    Raises:
        OSError: If nobody listens there.
    """

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.create_connection((address, port), timeout=_ATTEMPT)
        self._socket.setblocking(False)

    def is_cut(self) -> bool:
        """Returns whether who listened there has ended."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


def reach(address: str, port: int, patience: Patience) -> Line:
    """Returns a line to where a store is served, as soon as there is one.

    Raises:
        TimeoutError: If nobody listens there in time.
    """
    for _ in patience.turns():
        with suppress(OSError):
            return Line(address, port)
    raise TimeoutError(f"nobody listens there within {patience.seconds:g} s")
