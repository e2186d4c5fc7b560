"""Serving the store over which processes meet, on one network interface.

Left to itself, torch's store listens on all interfaces of a host. Here rank 0 hands it a socket
that listens where the others come from: on loopback where all processes are on one host, otherwise
on the address by which the job knows the host.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress
from functools import cache

from torch.distributed import TCPStore  # type: ignore[attr-defined]

BACKLOG = 4096
"""Processes that may connect at once; the system may allow fewer."""


def serve_store(address: str, port: int, local: bool) -> None:
    """Serves a store as long as this process lives, unless somebody serves one there already.

    Args:
        address, port: Where the processes of the job look for it.
        local: Whether all of them are on this host.

    Raises:
        OSError: If no socket can listen there.
    """
    try:
        _served(address, port, local)
    except OSError as error:
        # It is that of a process group of the user's own, or another server of the job.
        if error.errno != errno.EADDRINUSE:
            raise


@cache
def _served(address: str, port: int, local: bool) -> TCPStore:
    """Returns the store of this process; others stay connected while sessions come and go."""
    listener = listening_socket(address, port, local)
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def listening_socket(address: str, port: int, local: bool) -> socket.socket:
    """Returns a socket that listens on the interface with this address.

    Where the name leads to no address of this host (a service of a container system), or only to
    loopback though there are other hosts, it listens on all interfaces.

    Args:
        address: A host's name or address.
        port: The port.
        local: Whether only processes of this host connect.

    Raises:
        OSError: If the name is unknown, or the port is taken.
    """
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    for family, _, _, _, place in sorted(found, key=lambda each: each[0] != socket.AF_INET):
        if local or not ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback:
            with suppress(_NotOurs):
                return _listening(family, place)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    return socket.create_server(("", port), backlog=BACKLOG)


class _NotOurs(Exception):
    """The address is not one of this host."""


def _listening(family: int, place: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted job takes the port over from connections that are being ended.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _NotOurs from error
        raise
    return listener
