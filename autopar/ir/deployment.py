"""Deployment: which rank runs which program, with which coordinates, in which process groups.

Executable programs are shared by all ranks of a class (the ranks of a stage). What differs is in
this table: a rank's coordinates resolve the rank expressions of its program, and the groups say
with whom it takes part in a collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autopar.ir.program import Program


class RankEntry(NamedTuple):
    """One rank: a process on one physical device.

    Attributes:
        program: Index of the program it runs, in `Deployment.programs`.
        coords: Its coordinate per axis, in the order of `Deployment.axes`.
        process_id: The logical process of the mesh that it carries out.
    """

    program: int
    coords: tuple[int, ...]
    process_id: int


@dataclass(frozen=True)
class Deployment:
    """Everything that the ranks need but the weights.

    Attributes:
        programs: The executable programs, one per class of ranks.
        axes: Names of the coordinates that rank expressions use.
        ranks: One entry per rank; the position is the rank in the launched job, that is, the
            physical device.
        groups: Process groups by name. Each is a partition of ranks into lists; a collective runs
            in the list that the rank is in, whose order is the order of the blocks.
    """

    programs: tuple[Program, ...]
    axes: tuple[str, ...]
    ranks: tuple[RankEntry, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def program_of(self, rank: int) -> Program:
        """Returns the program that a rank runs."""
        return self.programs[self.ranks[rank].program]

    def coords_of(self, rank: int) -> dict[str, int]:
        """Returns a rank's coordinates by axis."""
        return dict(zip(self.axes, self.ranks[rank].coords, strict=True))

    def group_of(self, name: str, rank: int) -> tuple[int, ...]:
        """Returns the ranks with which `rank` takes part in a collective of group `name`.

        Raises:
            KeyError: If there is no such group or the rank is in none of its lists.
        """
        for members in self.groups[name]:
            if rank in members:
                return members
        raise KeyError(f"rank {rank} is in no list of group {name!r}")
