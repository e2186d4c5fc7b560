"""Placement: which logical process each rank carries out.

Ranks are physical devices in the order of the launched job: the devices of a host count up, then
the hosts. So along the last axis of an identity placement neighbours share the fastest links.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np

from autopar.base.errors import InvalidInputError
from autopar.cost.cluster import Cluster
from autopar.cost.collectives import CommunicationModel
from autopar.ir.collectives import declared
from autopar.ir.mesh import ProcessMesh
from autopar.mapping.traffic import Traffic

NAMED = ("identity", "auto")
"""Placements that have a name."""
_ID = re.compile(r"[0-9]{1,9}")

Placement = str | tuple[int, ...]
"""`identity`, `auto`, the process id of each rank, or a text or a file that lists these ids."""


def resolve(
    placement: Placement, mesh: ProcessMesh, cluster: Cluster, volume: Sequence[Traffic]
) -> tuple[int, ...]:
    """Returns the process id that each rank carries out.

    Args:
        placement: What the user asks for.
        mesh: The logical processes.
        cluster: The devices; `auto` looks at its links.
        volume: What a rank communicates; `auto` places its heaviest axes on the fastest links.

    Raises:
        InvalidInputError: If the placement can't be read or doesn't fit the mesh.
        AnnotationError: If `auto` has to place more processes than the cluster has devices.
    """
    if placement == "identity":
        return identity(mesh)
    if placement == "auto":
        return ordered(mesh, cheapest_order(mesh, cluster, volume))
    return given(mesh, _listed(placement) if isinstance(placement, str) else placement)


def identity(mesh: ProcessMesh) -> tuple[int, ...]:
    """Returns the processes in ascending order: of processes 0 to 7, rank 3 carries out 3."""
    return tuple(sorted(mesh.ids))


def ordered(mesh: ProcessMesh, axes: Sequence[str]) -> tuple[int, ...]:
    """Returns the processes in the order in which these axes, the last the fastest, visit them."""
    grid = np.asarray(mesh.ids, dtype=np.int64).reshape(mesh.shape)
    return tuple(grid.transpose([mesh.axis_index(axis) for axis in axes]).reshape(-1).tolist())


def given(mesh: ProcessMesh, processes: Sequence[int]) -> tuple[int, ...]:
    """Returns the user's placement after checking it.

    Raises:
        InvalidInputError: If it doesn't name every process of the mesh exactly once.
    """
    known = set(mesh.ids)
    counted = sorted(processes)
    problems = []
    if strangers := sorted({process for process in processes if process not in known}):
        problems.append(f"the mesh has no process {_some(strangers)}")
    if twice := sorted({a for a, b in pairwise(counted) if a == b}):
        problems.append(f"process {_some(twice)} appears more than once")
    if missing := sorted(known.difference(processes)):
        problems.append(f"process {_some(missing)} is missing")
    if problems:
        raise InvalidInputError(
            f"placement {_some(processes)}: {'; '.join(problems)}. A placement names the process"
            f" that each of the {mesh.size} ranks carries out, each process once"
        )
    return tuple(processes)


def parse_placement(text: str) -> Placement:
    """Returns the placement that an option's text means.

    Args:
        text: `identity`, `auto`, process ids such as `0,2,1,3`, or a file that lists them. There
            they may stand on several lines, one per host for example; `#` starts a comment.

    Raises:
        InvalidInputError: If it is none of these.
    """
    return text if text in NAMED else _listed(text)


def cheapest_order(
    mesh: ProcessMesh, cluster: Cluster, volume: Sequence[Traffic]
) -> tuple[str, ...]:
    """Returns the order of axes, the last on the fastest links, with the least communication time.

    Every order is priced; of equal ones the one closest to the mesh's own is taken.
    """
    best, least = mesh.dim_names, math.inf
    for order in permutations(mesh.dim_names):
        model = CommunicationModel(cluster, mesh, order)
        seconds = sum(
            each.count * model.collective_seconds(declared(each.kind).price, each.nbytes, each.axes)
            for each in volume
        )
        if seconds < least:
            best, least = order, seconds
    return best


def _listed(text: str) -> tuple[int, ...]:
    if set(text) <= set("0123456789, "):
        return _ids(text, f"placement {text!r}")
    path = Path(text)
    if not os.path.isfile(path):  # False too for what can't be a path.
        raise InvalidInputError(
            f"placement {text!r} is none of identity, auto, a list of process ids such as 0,2,1,3,"
            " or a file with such a list"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"placement file {path}: {error}") from error
    return _ids(" ".join(line.partition("#")[0] for line in lines), f"placement file {path}")


def _ids(text: str, where: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if wrong := [word for word in words if not _ID.fullmatch(word)]:
        raise InvalidInputError(f"{where}: {wrong[0]!r} is not a process id")
    return tuple(int(word) for word in words)


def _some(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return shown if len(ids) <= 8 else f"{shown}, ... ({len(ids)} in all)"
