"""The process group of all ranks, which sessions of a process share.

torch has one in a process. Who finds none makes it, who finds one uses it, and the last of the
sessions that use one that a session made destroys it. A group of the user's own stays.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from autopar.runtime.job.closing import Closing
from autopar.runtime.job.processes import Processes

INTERFACE = "GLOO_SOCKET_IFNAME"
"""By this variable alone can gloo be told which network interface to listen on."""


class World(Closing):
    """A share in the process group of all ranks.

    Args:
        processes: The ranks.
        backend: `gloo` or `nccl`, if it is made here.
        store: Where ranks meet, with keys that nobody else uses.
        timeout: For how long its collectives wait, if it is made here.
    """

    def __init__(
        self, processes: Processes, backend: str, store: Store, timeout: timedelta
    ) -> None:
        if not dist.is_initialized():
            dist.init_process_group(
                backend,
                store=store,
                rank=processes.rank,
                world_size=processes.size,
                timeout=timeout,
            )
            _users()[_group()] = 0
        if _group() in _users():
            _users()[_group()] += 1
        self._group: dist.ProcessGroup | None = _group()

    def close(self) -> None:
        """Gives the share back; the last one of a group that was made here destroys it."""
        group, self._group = self._group, None
        if group is None or group not in _users():
            return
        _users()[group] -= 1
        if _users()[group] == 0:
            del _users()[group]
            if dist.group.WORLD is group:
                dist.destroy_process_group()


@cache
def _users() -> dict[dist.ProcessGroup, int]:
    """Returns the number of users of each group that was made here: process-wide, as these are."""
    return {}


def _group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


@contextmanager
def interface_of(processes: Processes) -> Iterator[None]:
    """Lets gloo listen on loopback alone where all processes are on one host.

    What the user says about interfaces stands.
    """
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if not processes.local or not names or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = names[0]
    try:
        yield
    finally:
        os.environ.pop(INTERFACE, None)
