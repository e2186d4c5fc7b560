"""Process groups: from the lists of a Deployment to what a collective needs to know."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store, _new_process_group_helper, _world

from autopar.ir.deployment import Deployment


class Group(NamedTuple):
    """The processes with which a rank takes part in a collective.

    Attributes:
        tag: The name by which the backend knows the group.
        size: Number of members.
        position: The rank's position among them, in the order of the blocks.
        order: For each position in the order of the blocks, the member's position in the
            backend's order, which is by rank.
        backend: `gloo`, `nccl`, or `virtual` for a group without processes.
    """

    tag: str
    size: int
    position: int
    order: tuple[int, ...]
    backend: str


def group_of(deployment: Deployment, name: str, rank: int, tag: str, backend: str) -> Group:
    """Returns the group `name` as `rank` sees it."""
    members = deployment.group_of(name, rank)
    ranked = sorted(members)
    order = tuple(ranked.index(member) for member in members)
    return Group(tag, len(members), members.index(rank), order, backend)


def virtual_groups(deployment: Deployment, rank: int) -> dict[str, Group]:
    """Returns a rank's groups where no processes stand behind them."""
    return {
        name: group_of(deployment, name, rank, name, "virtual")
        for name in deployment.groups
        if _takes_part(deployment, name, rank)
    }


class ProcessGroups:
    """The process groups of a rank, each made once, when a program needs it.

    A group is called after what its members agree on: who they are, and the name that they gave to
    all of their groups. (torch's own names for groups that only the members make count the groups
    that a process has made before. So members in different numbers of groups disagree, and wait
    for one another forever.)

    Args:
        name: What all ranks call their groups; no others of the process may be called so.
        store: Where members meet, with keys that nobody else uses.
        timeout: For how long a member waits for the others, here and in collectives.
    """

    def __init__(self, name: str, store: Store, timeout: timedelta) -> None:
        self.name = name
        self.store = store
        self.timeout = timeout
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def of(self, deployment: Deployment, rank: int, backend: str) -> dict[str, Group]:
        """Returns the groups of a rank, and makes those that there aren't yet.

        Only the members of a group meet to make it, so the cost doesn't grow with the number of
        groups. All lists are walked in the same order everywhere, so members can't wait for each
        other in a circle. Groups of one rank need no process group; lists with the same ranks
        share one.

        Args:
            deployment: The groups.
            rank: The rank.
            backend: `gloo` or `nccl`.
        """
        groups: dict[str, Group] = {}
        for name in sorted(deployment.groups):
            if _takes_part(deployment, name, rank):
                members = tuple(sorted(deployment.group_of(name, rank)))
                tag = self._tag(members, deployment.world_size, rank, backend)
                groups[name] = group_of(deployment, name, rank, tag, backend)
        return groups

    def close(self) -> None:
        """Ends the groups."""
        for group in self._made.values():
            # That of all ranks may have been destroyed before, and they with it.
            if group in _world.pg_map:
                dist.destroy_process_group(group)
        self._made.clear()

    def _tag(self, members: tuple[int, ...], world_size: int, rank: int, backend: str) -> str:
        if len(members) == 1:
            return ""
        if len(members) == world_size and dist.group.WORLD is not None:
            return str(dist.group.WORLD.group_name)
        if members not in self._made:
            self._made[members] = self._make(members, rank, backend)
        return str(self._made[members].group_name)

    def _make(self, members: tuple[int, ...], rank: int, backend: str) -> dist.ProcessGroup:
        """Returns a new group, as `dist.new_group` makes it but for its name and its store."""
        digest = hashlib.sha256(",".join(map(str, members)).encode()).hexdigest()[:16]
        name: Any = f"{self.name}/{digest}"
        at = members.index(rank)
        with _unbound(dist.group.WORLD):
            group, _ = _new_process_group_helper(
                len(members), at, list(members), backend, self.store, name, timeout=self.timeout
            )
        _world.pg_group_ranks[group] = {member: at for at, member in enumerate(members)}
        return group  # type: ignore[no-any-return]


@contextmanager
def _unbound(world: dist.ProcessGroup | None) -> Iterator[None]:
    """Lets groups be made by their members alone.

    Those of a group that is bound to a device would be split off it, at which all ranks meet.
    """
    device = None if world is None else world.bound_device_id
    if world is None or device is None:
        yield
        return
    world.bound_device_id = None
    try:
        yield
    finally:
        world.bound_device_id = device


def _takes_part(deployment: Deployment, name: str, rank: int) -> bool:
    return any(rank in members for members in deployment.groups[name])


def members_by_rank(deployment: Deployment) -> Mapping[tuple[str, int], tuple[int, ...]]:
    """Returns the members, in the order of the blocks, by (group name, rank)."""
    return {
        (name, rank): members
        for name, lists in deployment.groups.items()
        for members in lists
        for rank in members
    }
