"""Process groups: the lists of ranks within which collectives over mesh axes run.

A group is named after its axes, `tp` or `dp_tp`. It is a partition of all ranks: every list holds
the ranks that differ in nothing but their coordinates along those axes, in the order of their
blocks, the first axis being the major one. So `dp_tp` and `tp_dp` are two groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autopar.ir.mesh import ProcessMesh

RankLists = tuple[tuple[int, ...], ...]
"""A partition of ranks into the lists in which a collective runs."""


def group_name(axes: Sequence[str], mesh: ProcessMesh) -> str:
    """Returns the name of the group over these mesh axes.

    The names are joined with `_`, or with `.` on a mesh where an axis name contains `_`, so that
    different axes never give one name.
    """
    separator = "." if any("_" in axis for axis in mesh.dim_names) else "_"
    return separator.join(axes)


def rank_lists(mesh: ProcessMesh, axes: Sequence[str], rank_of: npt.NDArray[np.int64]) -> RankLists:
    """Returns the lists of a group.

    Args:
        mesh: The logical processes.
        axes: The axes of the group, major to minor.
        rank_of: The rank that carries out the process at each coordinate, of the mesh's shape.

    Returns:
        One list per combination of the other axes' coordinates, in row-major order of these.
    """
    positions = [mesh.axis_index(axis) for axis in axes]
    minor = np.moveaxis(rank_of, positions, range(-len(positions), 0))
    return tuple(map(tuple, minor.reshape(-1, mesh.axes_size(axes)).tolist()))


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
    mesh: ProcessMesh, axes: Iterable[Sequence[str]], processes: Sequence[int]
) -> Mapping[str, RankLists]:
    """Returns the groups over each of these combinations of axes, by name, in the given order."""
    grid = rank_grid(mesh, processes)
    return {group_name(each, mesh): rank_lists(mesh, each, grid) for each in axes}
