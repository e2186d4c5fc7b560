"""The job that a parallel module runs in: its ranks, and the mesh that they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import fx
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from autopar.annotate import MeshLike, as_mesh
from autopar.base.errors import RuntimeFailure
from autopar.ir.deployment import Deployment
from autopar.ir.mesh import ProcessMesh
from autopar.parallel.parts import Shape
from autopar.parallel.sharing import Plan
from autopar.parallel.watching import TIMEOUT, Watched, watched
from autopar.runtime.agree.agreement import Agreement, Offer
from autopar.runtime.agree.disagreement import CALL, LOCAL
from autopar.runtime.agree.preparing import no_contents, prepared_by_all
from autopar.runtime.agree.talk import RankTalk
from autopar.runtime.collectives.groups import Group, ProcessGroups
from autopar.runtime.job.device import backend_of
from autopar.runtime.job.messages import Messages
from autopar.runtime.job.processes import Processes

Result = TypeVar("Result")


@dataclass
class Job:
    """This process among those of the mesh.

    Attributes:
        rank: Its rank.
        size: Number of ranks.
        device: Where it computes.
        given: The mesh as the user gave it.
        talk: The group in which ranks compare what they are about to do, on the CPU.
        messages: What they tell one another; None in a job of one process.
        agreement: What compares their calls.
        watched: What watches over the ranks; None in a job of one process.
        deployment: How the ranks are grouped.
    """

    rank: int
    size: int
    device: torch.device
    given: MeshLike
    talk: dist.ProcessGroup | None = None
    messages: Messages | None = None
    agreement: Agreement = field(default_factory=Agreement)
    watched: Watched | None = None
    deployment: Deployment | None = None

    def groups(self, deployment: Deployment) -> dict[str, Group]:
        """Returns the rank's process groups; each is made once."""
        backend = backend_of(self.device)
        self.deployment = deployment
        if self.watched is None:
            return ProcessGroups("", HashStore(), TIMEOUT).of(deployment, self.rank, backend)
        return self.watched.groups(deployment, backend)

    def note(self, module: fx.GraphModule) -> None:
        """Lets messages name the ops of an emitted module."""
        if self.watched is not None:
            self.watched.supervisor.whereabouts.add(module)

    def reported(self) -> AbstractContextManager[None]:
        """Makes a failure of a program within known to all ranks."""
        if self.watched is None:
            return nullcontext()
        self.watched.deployment = self.deployment
        self.watched.supervisor.whereabouts.begin()
        return self.watched.supervisor.reported()

    def talking(self) -> AbstractContextManager[None]:
        """Says who is to blame if ranks don't answer; other errors within are left alone."""
        return nullcontext() if self.watched is None else self.watched.supervisor.talking()

    def device_mesh(self, deployment: Deployment, mesh: ProcessMesh) -> DeviceMesh | None:
        """Returns the mesh of DTensors: the user's own, or one with the processes as placed.

        Args:
            deployment: Which rank carries out which process.
            mesh: The mesh of the program, or a part of it.

        Returns:
            None in a job of one process, where nothing is split.
        """
        if self.size == 1:
            return None
        if isinstance(self.given, DeviceMesh) and not mesh.fixed:
            return self.given
        assert self.watched is not None
        return self.watched.device_mesh(deployment, mesh, self.device.type)

    def agree(self, offer: Offer) -> None:
        """Makes sure that all ranks make the same call; otherwise they would wait for one another.

        Args:
            offer: What the call is.

        Raises:
            InvalidInputError: On all ranks, if one of them makes another call, or can't make it.
        """
        with self.talking():
            refusal = self.agreement.start(offer).settle()
        if refusal is not None:
            raise refusal

    def jointly(
        self,
        call: str,
        prepare: Callable[[], Result],
        contents: Callable[[Result], Mapping[str, str]] = no_contents,
        /,
        **alike: object,
    ) -> Result:
        """Returns what a rank prepares by itself for a call, if all ranks can; none begins it else.

        Args:
            call: Its name.
            prepare: Prepares it: it doesn't communicate, nor change anything.
            contents: Returns, of what was prepared, the contents that must be the same on all
                ranks, by label. It isn't called where nobody compares them.
            alike: What must be the same on all ranks, by name.

        Raises:
            InvalidInputError: On all ranks, if `prepare` raises it on one of them, or they make
                different calls, or bring other contents. They can go on.
        """
        values = {LOCAL: str(False), CALL: call, **{n: str(value) for n, value in alike.items()}}
        offer = Offer(values=values, call=call)
        return prepared_by_all(self.agreement, self.talking(), offer, prepare, contents)

    def shapes_of_all(self, shapes: Sequence[Shape]) -> list[list[Shape]]:
        """Returns, for each tensor, the shapes that the ranks have, of equally many dimensions."""
        mine = [size for shape in shapes for size in shape]
        with self.talking():
            found = self._numbers_of_all(mine) if self.size > 1 and mine else [mine] * self.size
        table = []
        start = 0
        for shape in shapes:
            table.append([tuple(each[start : start + len(shape)]) for each in found])
            start += len(shape)
        return table

    def compare_programs(self, digest: str, problem: str = "") -> None:
        """Makes sure that all ranks ask for the same program, before rank 0 plans it.

        Args:
            digest: Of the program and of how it is to be compiled.
            problem: Why this rank has none; it goes on to say so itself.

        Raises:
            RuntimeFailure: On all other ranks, if one of them has none, or asks for another one.
        """
        if self.messages is None:
            return
        with self.talking():
            texts = self.messages.of_all(json.dumps([digest, problem]))
        found = [json.loads(each) for each in texts]
        if problem:
            return
        for rank, (_, theirs) in enumerate(found):
            if theirs:
                raise RuntimeFailure(f"rank {rank} has no program: {theirs}")
        others = [rank for rank, (theirs, _) in enumerate(found) if theirs != found[0][0]]
        if others:
            raise RuntimeFailure(
                f"rank {_listed(others)} asks for another program than rank 0: every rank must"
                " have the same model and options"
            )

    def planned(self, make: Callable[[], Plan]) -> Plan:
        """Returns the plan that rank 0 makes, the same on all ranks.

        Raises:
            AutoparError: On all ranks, if rank 0 can't make it.
        """
        made: list[Plan] = []

        def content() -> bytes:
            made.append(make())
            return made[0].to_bytes()

        if self.messages is None:
            return make()
        found = self.made_by_first(content)
        return made[0] if made else Plan.from_bytes(found)

    def made_by_first(self, make: Callable[[], bytes]) -> bytes:
        """Returns on all ranks what rank 0 makes; see `Messages`."""
        if self.messages is None:
            return make()
        with self.talking():
            return self.messages.made_by_first(make)

    def _numbers_of_all(self, mine: Sequence[int]) -> list[list[int]]:
        """Returns the numbers of each rank, equally many of all."""
        sent = torch.tensor(mine, dtype=torch.int64)
        arrived = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(arrived, sent, group=self.talk)
        return [each.tolist() for each in arrived]


def connect(given: MeshLike, device: torch.device, check_inputs: bool = True) -> Job:
    """Returns this process's place in the job, whose process group is made if it isn't there.

    Args:
        given: The mesh as the user gave it, one process per rank of the job.
        device: Where the rank computes.
        check_inputs: Whether the ranks compare the tensors of their calls.

    Raises:
        RuntimeFailure: If the job has another number of ranks, or one doesn't come.
    """
    mesh, found = as_mesh(given), Processes.from_environment()
    size = dist.get_world_size() if dist.is_initialized() else found.size
    if size != mesh.size:
        raise RuntimeFailure(
            f"the job has {size} processes but mesh {mesh} has {mesh.size}; start the script with"
            f" torchrun --nproc-per-node {mesh.size}, or give a mesh of {size}"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank = dist.get_rank() if dist.is_initialized() else found.rank
    # How many of the ranks are on this host, only a launcher knows.
    known = found.size == size
    processes = replace(found, rank=rank) if known else Processes(rank, size, rank, 1)
    if size == 1:
        return Job(0, size, device, given, agreement=Agreement(None, check_inputs))
    ranks = watched(processes, device)
    talk, messages = ranks.talk(device), ranks.messages(device)
    told = RankTalk(processes, torch.device("cpu"), lambda: messages, ranks.sums(device))
    return Job(rank, size, device, given, talk, messages, Agreement(told, check_inputs), ranks)


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return ", ".join(map(str, ranks[:4])) + more
