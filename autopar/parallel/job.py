"""The job that a parallel module runs in: its ranks, and the mesh that they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from autopar.annotate import MeshLike, as_mesh
from autopar.ir.deployment import Deployment
from autopar.ir.errors import RuntimeFailure
from autopar.ir.mesh import ProcessMesh
from autopar.parallel.parts import Shape
from autopar.parallel.sharing import Plan, from_first
from autopar.parallel.talk import GroupTalk, numbers_of_all, texts_of_all
from autopar.runtime.agreement import Agreement, Offer
from autopar.runtime.groups import Group, create_groups
from autopar.runtime.placements import device_mesh_of
from autopar.runtime.processes import Processes

TIMEOUT = timedelta(minutes=10)
"""For how long a rank waits for the others when process groups are made."""


@dataclass
class Job:
    """This process among those of the mesh.

    Attributes:
        rank: Its rank.
        size: Number of ranks.
        device: Where it computes.
        given: The mesh as the user gave it.
        tags: The process groups made so far, by their ranks.
        talk: The group in which ranks compare what they are about to do, on the CPU.
        agreement: What compares their calls.
    """

    rank: int
    size: int
    device: torch.device
    given: MeshLike
    tags: dict[tuple[int, ...], str] = field(default_factory=dict)
    talk: dist.ProcessGroup | None = None
    agreement: Agreement = field(default_factory=Agreement)

    def groups(self, deployment: Deployment) -> dict[str, Group]:
        """Returns the rank's process groups; each is made once."""
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        return create_groups(deployment, self.rank, backend, TIMEOUT, self.tags)

    def device_mesh(self, deployment: Deployment, mesh: ProcessMesh) -> DeviceMesh | None:
        """Returns the mesh of DTensors: the user's own, or one with the processes as placed.

        Args:
            deployment: Which rank carries out which process.
            mesh: The mesh of the program.

        Returns:
            None in a job of one process, where nothing is split.
        """
        if isinstance(self.given, DeviceMesh) or self.size == 1:
            return self.given if isinstance(self.given, DeviceMesh) and self.size > 1 else None
        return device_mesh_of(deployment, mesh, self.device.type)

    def agree(self, offer: Offer) -> None:
        """Makes sure that all ranks make the same call; otherwise they would wait for one another.

        Args:
            offer: What the call is.

        Raises:
            InvalidInputError: On all ranks, if one of them makes another call, or can't make it.
        """
        if (refusal := self.agreement.start(offer).settle()) is not None:
            raise refusal

    def shapes_of_all(self, shapes: Sequence[Shape]) -> list[list[Shape]]:
        """Returns, for each tensor, the shapes that the ranks have, of equally many dimensions."""
        mine = [size for shape in shapes for size in shape]
        found = numbers_of_all(mine, self.talk) if self.size > 1 else [mine]
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
        if self.size == 1:
            return
        found = [
            json.loads(each) for each in texts_of_all(json.dumps([digest, problem]), self.talk)
        ]
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
        if self.size == 1:
            return make()
        made: list[Plan] = []

        def messages() -> Sequence[bytes]:
            made.append(make())
            return made[0].to_bytes()

        found = from_first(messages, self.talk)
        return made[0] if made else Plan.from_bytes(found)


def connect(given: MeshLike, device: torch.device, check_inputs: bool = True) -> Job:
    """Returns this process's place in the job, whose process group is made if it isn't there.

    Args:
        given: The mesh as the user gave it, one process per rank of the job.
        device: Where the rank computes.
        check_inputs: Whether the ranks compare the tensors of their calls.

    Raises:
        RuntimeFailure: If the job has another number of ranks.
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
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    talk = dist.new_group(backend="gloo") if size > 1 and device.type != "cpu" else None
    agreement = Agreement(GroupTalk(talk) if size > 1 else None, check_inputs)
    return Job(rank, size, device, given, talk=talk, agreement=agreement)


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return ", ".join(map(str, ranks[:4])) + more


def choose_device(mesh: MeshLike, tensors: Sequence[Tensor]) -> torch.device:
    """Returns where a rank computes: where its model is, unless a DeviceMesh says otherwise.

    Args:
        mesh: The mesh as the user gave it.
        tensors: The model's.
    """
    if isinstance(mesh, DeviceMesh) and mesh.device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    if isinstance(mesh, DeviceMesh):
        return torch.device(mesh.device_type)
    return next((each.device for each in tensors if not each.is_meta), torch.device("cpu"))
