"""Process groups: from the lists of a Deployment to what a collective needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

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


def create_groups(
    deployment: Deployment,
    rank: int,
    backend: str,
    timeout: timedelta,
    tags: dict[tuple[int, ...], str] | None = None,
) -> dict[str, Group]:
    """Creates the process groups of a rank, in the one order that all ranks follow.

    Only the members of a group meet to create it, so the cost doesn't grow with the number of
    groups. All lists are walked in the same order everywhere, so members can't wait for each other
    in a circle. Groups of one rank need no process group; lists with the same ranks share one.

    Args:
        deployment: The groups.
        rank: The rank.
        backend: `gloo` or `nccl`.
        timeout: For how long a member waits for the others.
        tags: The groups that were created before, by their ranks; new ones are added.
    """
    tags = {} if tags is None else tags
    groups: dict[str, Group] = {}
    for name in sorted(deployment.groups):
        if not _takes_part(deployment, name, rank):
            continue
        members = tuple(sorted(deployment.group_of(name, rank)))
        if members not in tags:
            tags[members] = _create(members, deployment.world_size, timeout)
        groups[name] = group_of(deployment, name, rank, tags[members], backend)
    return groups


def _create(members: tuple[int, ...], world_size: int, timeout: timedelta) -> str:
    if len(members) == 1:
        return ""
    if len(members) == world_size:
        return _tag(dist.group.WORLD)
    return _tag(dist.new_group(list(members), timeout=timeout, use_local_synchronization=True))


def _tag(group: dist.ProcessGroup | None) -> str:
    return str(group.group_name) if group is not None else ""


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
