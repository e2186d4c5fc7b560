"""The connection of a rank to the others: it meets them, agrees with them, and leaves them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import PrefixStore

from autopar.ir.deployment import Deployment
from autopar.runtime.agree.agreement import Agreement
from autopar.runtime.agree.handshake import Identity, meet, shake_hands
from autopar.runtime.agree.shared_lines import NUMBERS
from autopar.runtime.agree.sums import Sums
from autopar.runtime.agree.talk import RankTalk
from autopar.runtime.collectives.groups import Group, ProcessGroups
from autopar.runtime.failure.connecting import connected
from autopar.runtime.failure.failure import RankFailure
from autopar.runtime.failure.supervise import Supervisor
from autopar.runtime.job.closing import Closing
from autopar.runtime.job.device import backend_of
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.patience import Patience
from autopar.runtime.job.processes import Processes
from autopar.runtime.job.world import World, interface_of


class Connection(Closing):
    """A rank among the processes of its job.

    Args:
        processes: Who this process is.
        timeout: Seconds that each collective waits for the other ranks.
        start_timeout: Seconds that the start waits for the other ranks, all its steps together.
        on_failure: See `Supervisor`.

    Attributes:
        supervisor: Makes the failure of this rank everybody's, and theirs its own.

    Raises:
        RuntimeFailure: If another rank failed.
    """

    def __init__(
        self,
        processes: Processes,
        timeout: float,
        start_timeout: float,
        on_failure: Callable[[RankFailure], None] | None,
    ) -> None:
        self.processes = processes
        self.timeout = timedelta(seconds=timeout)
        self._start = Patience(start_timeout)
        store = processes.connect(self._start)
        self.supervisor = Supervisor(
            processes, store, self.timeout, self._start, self._members, on_failure
        )
        self._world: World | None = None
        self._sums: Sums | None = None
        groups = PrefixStore("groups", self.supervisor.store)
        self._groups = ProcessGroups(self.supervisor.name, groups, self.timeout)
        self._deployments: list[Deployment] = []

    def agree(self, identity: Identity) -> None:
        """Makes sure that all ranks are about to run the same.

        Raises:
            RuntimeFailure: If they aren't, or don't come.
        """
        who, board = self.processes, self.supervisor.board
        shake_hands(self.supervisor.store, who.rank, who.size, identity, self._start, board.first)

    def meet(self, event: str) -> None:
        """Waits until all ranks are as far as this one, which may fail before and not after."""
        board, who = self.supervisor.board, self.processes
        if who.size > 1:
            meet(board.store, event, who.rank, who.size, self._start, board.first)

    def groups(self, deployment: Deployment, device: torch.device) -> dict[str, Group]:
        """Returns the groups of this rank in a deployment, and makes those that there aren't yet.

        Args:
            deployment: All ranks.
            device: Where this one computes.
        """
        self._deployments.append(deployment)
        backend = backend_of(device)
        with interface_of(self.processes):
            if self.processes.size > 1 and self._world is None:
                store = PrefixStore("world", self.supervisor.store)
                self._world = World(self.processes, backend, store, self.timeout)
            return self._groups.of(deployment, self.processes.rank, backend)

    def agreement(self, device: torch.device, check_inputs: bool) -> Agreement:
        """Returns what compares what the ranks bring, once they are connected.

        Args:
            device: Where this rank computes.
            check_inputs: Whether what they bring to calls is compared.
        """
        return Agreement(self._talk(device), check_inputs)

    def tally(self, choice: int) -> Sequence[int]:
        """See `Ranks`."""
        mine = [int(choice == each) for each in range(NUMBERS)]
        if self._sums is None:
            return mine
        with self.supervisor.reported():
            return self._sums.start(mine)()

    def messages(self, meeting: bool) -> Messages:
        """See `Ranks`."""
        with self.supervisor.reported():
            return connected(
                self.supervisor, (lambda: self.tally(0)) if meeting else (lambda: None)
            )

    def close(self) -> None:
        """Leaves the others, and ends the process group if nobody else uses it."""
        self.supervisor.leave()
        if self._sums is not None:
            self._sums.leave()
        self._groups.close()
        if self._world is not None:
            self._world.close()
        self.supervisor.close()

    def _talk(self, device: torch.device) -> RankTalk | None:
        if self.processes.size == 1:
            return None
        self._sums = self.supervisor.sums(device)
        return RankTalk(self.processes, device, lambda: self.messages(meeting=False), self._sums)

    def _members(self, rank: int, group: str) -> Collection[int]:
        found = [each for each in self._deployments if group in each.groups]
        return found[0].group_of(group, rank) if found else range(self.processes.size)
