"""What a session and one of its ranks tell one another, over a socket of this host.

A message is a JSON object, and maybe a file that both have open then. Nothing is pickled.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

_HEAD = struct.Struct("!I?")
"""Bytes of a message, and whether a file goes with it."""


class Line:
    """One end of a connection.

    Args:
        end: The socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """Returns the number of the socket, for who waits for several."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], file: int | None = None) -> None:
        """Sends a message.

        Args:
            message: What JSON can hold.
            file: The number of an open file that the other side gets too.

        Raises:
            OSError: If the other side is gone.
        """
        body = json.dumps(message).encode()
        head = _HEAD.pack(len(body), file is not None)
        if file is None:
            self._socket.sendall(head + body)
        else:
            # A file goes along with the first byte.
            socket.send_fds(self._socket, [head[:1]], [file])
            self._socket.sendall(head[1:] + body)

    def receive(self) -> tuple[dict[str, Any], int | None]:
        """Waits for a message; returns it, and the number of the file that comes with it.

        Raises:
            EOFError: If the other side has ended.
        """
        first, files = self._first()
        length, has_file = _HEAD.unpack(first + self._exactly(_HEAD.size - 1))
        message: dict[str, Any] = json.loads(self._exactly(length))
        return message, files[0] if has_file else None

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _first(self) -> tuple[bytes, list[int]]:
        try:
            first, files, *_ = socket.recv_fds(self._socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise EOFError from error
        if not first:
            raise EOFError
        return first, list(files)

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._socket.recv(count - len(found))
            if not part:
                raise EOFError
            found += part
        return bytes(found)
