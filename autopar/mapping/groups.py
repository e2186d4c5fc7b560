"""Process groups: the lists of ranks within which collectives over mesh axes run.

A group is named after its axes, `tp` or `dp_tp`. It is a partition of all ranks: every list holds
the ranks that differ in nothing but their coordinates along those axes, in the order of their
blocks, the first axis being the major one. So `dp_tp` and `tp_dp` are two groups.

What one slice of the mesh sends to another runs in a group among some coordinates along the axes
only, `pp:0-2` or `dp_tp:0.1-1.0`; ranks with other coordinates are in none of its lists. So does
what a part of the mesh does along an axis of which it has a run, `dp_pp[0..2]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autopar.ir import collectives
from autopar.ir.collectives import axes_of_group, runs_of_group
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Op
from autopar.mapping.collectives import among_of

Among = tuple[tuple[int, ...], ...]
"""Coordinates along the axes of a group of its members; none for all."""

RankLists = tuple[tuple[int, ...], ...]
"""A partition of ranks into the lists in which a collective runs."""


MOST_NAMED = 16
"""How many members of a group its name lists."""


class GroupKey(NamedTuple):
    """What tells groups apart.

    Attributes:
        axes: The axes, major to minor.
        among: The coordinates of the members along these; none for all.
        runs: The axes of which the members are at a run of indices only.
    """

    axes: tuple[str, ...]
    among: Among = ()
    runs: tuple[tuple[str, range], ...] = ()

    @classmethod
    def of(cls, op: Op) -> GroupKey:
        """Returns that of the group of a collective over mesh axes."""
        return cls(axes_of_group(op), among_of(op), tuple(runs_of_group(op).items()))

    def name(self, mesh: ProcessMesh) -> str:
        """Returns its name on a mesh."""
        return group_name(self.axes, mesh, self.among, self.runs)


def group_name(
    axes: Sequence[str],
    mesh: ProcessMesh,
    among: Among = (),
    runs: Sequence[tuple[str, range]] = (),
) -> str:
    """Returns the name of the group over these mesh axes, among some coordinates or all.

    The names of axes are joined with `_`, or with `.` on a mesh where an axis name contains `_`, so
    that different axes never give one name.
    """
    separator = "." if any("_" in axis for axis in mesh.dim_names) else "_"
    members = _members_text([".".join(map(str, coords)) for coords in among])
    name = collectives.group_name(axes, separator, dict(runs))
    return name + (f":{members}" if members else "")


def _members_text(members: Sequence[str]) -> str:
    """Returns the members of a group as text: where there are many, some of them and a digest."""
    text = "-".join(members)
    if len(members) <= MOST_NAMED:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return "-".join((*members[:2], f"{len(members)}", members[-1], digest))


def rank_lists(mesh: ProcessMesh, key: GroupKey, rank_of: npt.NDArray[np.int64]) -> RankLists:
    """Returns the lists of a group.

    Args:
        mesh: The logical processes.
        key: The group.
        rank_of: The rank that carries out the process at each coordinate, of the mesh's shape.

    Returns:
        One list per combination of the other axes' coordinates, in row-major order of these.
    """
    for axis, run in key.runs:
        rank_of = rank_of.take([*run], mesh.axis_index(axis))
    positions = [mesh.axis_index(axis) for axis in key.axes]
    minor = np.moveaxis(rank_of, positions, range(-len(positions), 0))
    if key.among:
        minor = minor[(..., *np.transpose(key.among))]
    members = len(key.among) or mesh.at(key.runs).axes_size(key.axes)
    return tuple(map(tuple, minor.reshape(-1, members).tolist()))


def rank_grid(mesh: ProcessMesh, processes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Returns the rank of the process at each coordinate of the mesh.

    Args:
        mesh: The logical processes.
        processes: The process id that each rank carries out.
    """
    ids = np.asarray(mesh.ids, dtype=np.int64)
    by_process = np.argsort(np.asarray(processes, dtype=np.int64), kind="stable")
    place = np.argsort(np.argsort(ids, kind="stable"), kind="stable")
    return by_process[place].reshape(mesh.shape)


def named_groups(
    mesh: ProcessMesh, used: Iterable[tuple[Any, ...]], processes: Sequence[int]
) -> Mapping[str, RankLists]:
    """Returns these groups by name, in this order."""
    grid = rank_grid(mesh, processes)
    keys = (GroupKey(*each) for each in used)
    return {key.name(mesh): rank_lists(mesh, key, grid) for key in keys}
