"""Process groups: the lists of ranks within which collectives over mesh axes run.

A group is named after its axes, `tp` or `dp_tp`. It is a partition of all ranks: every list holds
the ranks that differ in nothing but their coordinates along those axes, in the order of their
blocks, the first axis being the major one. So `dp_tp` and `tp_dp` are two groups.

What one slice of the mesh sends to another runs in a group among some coordinates along the axes
only, `pp:0-2` or `dp_tp:0.1-1.0`; ranks with other coordinates are in none of its lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autopar.ir.mesh import ProcessMesh

Among = tuple[tuple[int, ...], ...]
"""Coordinates along the axes of a group of its members; none for all."""

RankLists = tuple[tuple[int, ...], ...]
"""A partition of ranks into the lists in which a collective runs."""


def group_name(axes: Sequence[str], mesh: ProcessMesh, among: Among = ()) -> str:
    """Returns the name of the group over these mesh axes, among some coordinates or all.

    The names are joined with `_`, or with `.` on a mesh where an axis name contains `_`, so that
    different axes never give one name.
    """
    separator = "." if any("_" in axis for axis in mesh.dim_names) else "_"
    members = "-".join(".".join(map(str, coords)) for coords in among)
    return separator.join(axes) + (f":{members}" if members else "")


def rank_lists(
    mesh: ProcessMesh, axes: Sequence[str], rank_of: npt.NDArray[np.int64], among: Among = ()
) -> RankLists:
    """Returns the lists of a group.

    Args:
        mesh: The logical processes.
        axes: The axes of the group, major to minor.
        rank_of: The rank that carries out the process at each coordinate, of the mesh's shape.
        among: The coordinates of its members along the axes; none for all.

    Returns:
        One list per combination of the other axes' coordinates, in row-major order of these.
    """
    positions = [mesh.axis_index(axis) for axis in axes]
    minor = np.moveaxis(rank_of, positions, range(-len(positions), 0))
    if among:
        minor = minor[(..., *np.transpose(among))]
    return tuple(map(tuple, minor.reshape(-1, len(among) or mesh.axes_size(axes)).tolist()))


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
    mesh: ProcessMesh, used: Iterable[tuple[Sequence[str], Among]], processes: Sequence[int]
) -> Mapping[str, RankLists]:
    """Returns the groups over these axes and among these coordinates, by name, in this order."""
    grid = rank_grid(mesh, processes)
    return {
        group_name(axes, mesh, among): rank_lists(mesh, axes, grid, among) for axes, among in used
    }
