"""Levels: how the measuring processes are grouped by the links between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from autopar.base.errors import InvalidInputError
from autopar.runtime.collectives.groups import Group
from autopar.runtime.job.processes import Processes

PARTS = (2, 4)
"""Sizes besides that of a whole level in which collectives are measured."""


@dataclass(frozen=True)
class Level:
    """A level of links.

    Attributes:
        name: What joins the groups.
        size: How many groups of the level below, or processes, it joins.
        stride: How many ranks apart their first processes are.
    """

    name: str
    size: int
    stride: int

    @property
    def counts(self) -> list[int]:
        """How many members the groups have that are measured."""
        return sorted({n for n in (*PARTS, self.size) if n <= self.size and self.size % n == 0})


def levels_of(processes: Processes, text: str = "") -> list[Level]:
    """Returns the levels of links between processes, innermost first.

        >>> [level.stride for level in levels_of(Processes(size=8), "host=4,rack=2")]
        [1, 4]

    Args:
        processes: What the launcher says: how many there are on a host.
        text: Name and size of each level, if the launcher's hosts aren't all there is to say.

    Raises:
        InvalidInputError: If the sizes don't make up all processes.
    """
    given = list(_parsed(text)) if text else _hosts(processes)
    if math.prod(size for _, size in given) != processes.size:
        sizes = " x ".join(str(size) for _, size in given)
        raise InvalidInputError(
            f"the levels join {sizes} processes, and there are {processes.size}; give sizes whose"
            " product that is"
        )
    found, stride = [], 1
    for name, size in given:
        if size > 1:
            found.append(Level(name, size, stride))
        stride *= size
    return found


def _hosts(processes: Processes) -> list[tuple[str, int]]:
    size, local = processes.size, processes.local_size
    if size % local:
        raise InvalidInputError(
            f"{size} processes aren't {local} on each host; start as many on every host"
        )
    return [("host", local), ("network", size // local)]


def _parsed(text: str) -> Iterator[tuple[str, int]]:
    for part in text.split(","):
        name, _, size = (each.strip() for each in part.partition("="))
        if not name or not size.isdecimal() or int(size) < 1:
            raise InvalidInputError(
                f"levels {text!r}: write the name and size of each, from the inside, as"
                " host=8,rack=4"
            )
        yield name, int(size)


def group_of(
    processes: Processes, level: Level, members: int, backend: str, timeout: timedelta
) -> Group:
    """Returns the rank's group among those of so many neighbours on a level. All ranks call it."""
    mine: tuple[int, ...] = ()
    tag, span = "", members * level.stride
    for first in range(processes.size):
        if first % span >= level.stride:
            continue
        ranks = tuple(range(first, first + span, level.stride))
        group = dist.new_group(list(ranks), timeout=timeout)
        if processes.rank in ranks:
            mine, tag = ranks, str(group.group_name)
    return Group(tag, members, mine.index(processes.rank), tuple(range(members)), backend)
