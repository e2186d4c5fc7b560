"""From one partitioned program to the programs, ranks and groups that are launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from autopar.cost.cluster import Cluster
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.parts import Parts, programs_of
from autopar.ir.program import Program
from autopar.mapping.collectives import collectives
from autopar.mapping.groups import GroupKey, named_groups
from autopar.mapping.map import Map, mesh_of
from autopar.mapping.placement import Placement
from autopar.mapping.prove import prove
from autopar.mapping.strip import Strip

Observer = Callable[[str, Program], object]
"""Called with (pass name, program) after each pass."""


def deploy(
    program: Program,
    cluster: Cluster,
    placement: Placement = "identity",
    observe: Observer | None = None,
) -> Deployment:
    """Maps a partitioned program onto ranks, strips it, and proves its communication.

    Args:
        program: The partitioned program; its mesh says which processes there are.
        cluster: The hardware; `auto` places the axes by its links.
        placement: Which process each rank carries out; see `Map`.
        observe: Called after each pass.

    Raises:
        InvalidInputError: If the placement doesn't fit the mesh.
        VerificationError: If the ranks' collectives don't match or can wait for ever.
    """
    mapping, strip = Map(cluster, placement), Strip()
    mesh, processes = mesh_of(program), mapping.processes(program)
    mapped = mapping(program)
    if observe is not None:
        observe(mapping.name, mapped)
    parts = programs_of(mapped)
    executables = tuple(strip(each) for each in parts.programs)
    if observe is not None:
        for executable in executables:
            observe(strip.name, executable)
    used = dict.fromkeys(GroupKey.of(each.op) for each in collectives(program))
    deployment = Deployment(
        executables,
        mesh.dim_names,
        rank_table(mesh, processes, parts),
        named_groups(mesh, used, processes),
    )
    prove(deployment)
    return deployment


def rank_table(mesh: ProcessMesh, processes: Sequence[int], parts: Parts) -> tuple[RankEntry, ...]:
    """Returns one entry per rank.

    Args:
        mesh: The logical processes.
        processes: The process id that each rank carries out.
        parts: Which program runs where.
    """
    coords = dict(zip(mesh.ids, product(*map(range, mesh.shape)), strict=True))
    entries = ((coords[process], process) for process in processes)
    return tuple(RankEntry(parts.program_at(place), place, process) for place, process in entries)
