"""What watches over the ranks of the job that parallel modules share, and how they talk."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from autopar.base.errors import RuntimeFailure
from autopar.ir.deployment import Deployment
from autopar.ir.mesh import ProcessMesh
from autopar.runtime.agree.handshake import meet
from autopar.runtime.agree.sums import Sums
from autopar.runtime.collectives.groups import Group, ProcessGroups
from autopar.runtime.failure.connecting import connected
from autopar.runtime.failure.supervise import Supervisor
from autopar.runtime.job.closing import Closing, close_at_exit
from autopar.runtime.job.device import backend_of
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.patience import DEFAULT_START_TIMEOUT, Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.world import World, interface_of
from autopar.runtime.state.placements import device_mesh_of

TIMEOUT = timedelta(minutes=10)
"""For how long a rank waits for the others when process groups are made, and in collectives."""

START = DEFAULT_START_TIMEOUT
"""Seconds that a rank waits until all of them are there."""


class Watched(Closing):
    """The ranks of a job, watched over until the process ends, and their process groups.

    All parallel modules of the job share it. The process group is made if it isn't there.

    Args:
        processes: Who this process is.
        backend: That of the process group, if it is made.

    Attributes:
        deployment: Of the module that runs.
    """

    def __init__(self, processes: Processes, backend: str = "gloo") -> None:
        self.processes = processes
        self.deployment: Deployment | None = None
        self._meshes: dict[tuple[object, ...], DeviceMesh] = {}
        self._talks: dict[str, dist.ProcessGroup] = {}
        self._messages: dict[str, Messages] = {}
        self._sums: dict[str, Sums] = {}
        start = Patience(START, "call torch.distributed.init_process_group(timeout=) before")
        known = dist.is_initialized()
        store = _get_default_store() if known else processes.connect(start)
        store = PrefixStore("autopar/parallel", store)
        self.supervisor = Supervisor(processes, store, TIMEOUT, start, self._members)
        self.supervisor.standing.what = "job"
        self.supervisor.standing.remedy = "make its modules again by parallelize()"
        self.process_groups = ProcessGroups(
            self.supervisor.name, PrefixStore("groups", self.supervisor.store), TIMEOUT
        )
        # Modules aren't closed: the watch ends with the process, before the interpreter does.
        close_at_exit(self)
        if not known:
            with self.supervisor.reported():
                self._join(backend, start)

    def _join(self, backend: str, start: Patience) -> None:
        """Makes the process group, when all ranks are there."""
        board, processes = self.supervisor.board, self.processes
        meet(board.store, "came", processes.rank, processes.size, start, board.first)
        with interface_of(processes):
            # Nobody closes it: it is the job's from now on.
            World(processes, backend, PrefixStore("world", self.supervisor.store), TIMEOUT)

    def groups(self, deployment: Deployment, backend: str) -> dict[str, Group]:
        """Returns the rank's process groups; each is made once."""
        with self.supervisor.talking(), interface_of(self.processes):
            return self.process_groups.of(deployment, self.processes.rank, backend)

    def talk(self, device: torch.device) -> dist.ProcessGroup | None:
        """Returns a group in which tensors on the CPU can be sent; None for that of all ranks.

        Args:
            device: Where the ranks compute.
        """
        if device.type == "cpu":
            return None
        if device.type not in self._talks:
            with self.supervisor.talking():
                self._talks[device.type] = dist.new_group(backend="gloo")
        return self._talks[device.type]

    def sums(self, device: torch.device) -> Sums:
        """Returns what sums what the ranks compare, on the CPU.

        Args:
            device: Where the ranks compute.
        """
        if device.type not in self._sums:
            talk, name = self.talk(device), f"sums/{device.type}"
            self._sums[device.type] = self.supervisor.sums(torch.device("cpu"), talk, name)
        return self._sums[device.type]

    def messages(self, device: torch.device) -> Messages:
        """Returns what ranks tell one another; whoever waits notices at once that one has died.

        Args:
            device: Where the ranks compute.
        """
        if device.type not in self._messages:
            talk = self.talk(device)
            self._messages[device.type] = connected(
                self.supervisor, lambda: dist.all_reduce(torch.zeros(1), group=talk)
            )
        return self._messages[device.type]

    def device_mesh(self, deployment: Deployment, mesh: ProcessMesh, device: str) -> DeviceMesh:
        """See `device_mesh_of`; equal meshes are one."""
        placement = tuple(entry.process_id for entry in deployment.ranks)
        key = (mesh, placement, device)
        if key not in self._meshes:
            with self.supervisor.talking():
                self._meshes[key] = device_mesh_of(deployment, mesh, device)
        return self._meshes[key]

    def is_over(self, device: torch.device) -> bool:
        """Returns whether the watch has ended on any rank; all of them ask.

        Args:
            device: Where the ranks compute.

        Raises:
            RuntimeFailure: If another rank isn't there any more.
        """
        ended = torch.tensor(int(not self.supervisor.watches))
        with self.supervisor.talking() if self.supervisor.watches else _told():
            dist.all_reduce(ended, group=self.talk(device))
        return bool(ended)

    def close(self) -> None:
        """Ends the watch."""
        self.supervisor.close()
        for each in self._sums.values():
            each.leave()

    def _members(self, rank: int, group: str) -> Collection[int]:
        if self.deployment is None or group not in self.deployment.groups:
            return range(self.processes.size)
        return self.deployment.group_of(group, rank)


def watched(processes: Processes, device: torch.device) -> Watched:
    """Returns what watches over the ranks of the job; all ranks call alike.

    One that a failure has ended on some rank is followed by a new one.

    Args:
        processes: Who this process is.
        device: Where the ranks compute.
    """
    world, known = dist.group.WORLD, _watched()
    for group in [each for each in known if each is not world]:
        known.pop(group).close()
    found = None if world is None else known.get(world)
    if found is None or found.is_over(device):
        found = Watched(processes, backend_of(device))
        assert dist.group.WORLD is not None
        known[dist.group.WORLD] = found
    return found


@cache
def _watched() -> dict[dist.ProcessGroup, Watched]:
    """Returns what watches over each process group: process-wide, as these are."""
    return {}


@contextmanager
def _told() -> Iterator[None]:
    """Says that another rank doesn't answer, where nobody watches over the ranks any more."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeFailure(
            "the ranks can't agree to make modules again: another one has ended, or doesn't make"
            f" any ({str(error).splitlines()[0]}); start the job again"
        ) from error
