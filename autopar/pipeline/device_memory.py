"""Whether what a rank runs can be held by the cluster's devices.

A tensor that no host of the cluster holds is refused: the program could only end without memory,
minutes after it was started. A peak above a device's memory is told: the figures of a cluster are
estimates, and processes on CPUs share their host's memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from autopar.base.errors import UNKNOWN, InvalidInputError
from autopar.base.units import human_bytes
from autopar.cost import Cluster, memory_timeline
from autopar.cost.memory.buffers import HOST, Execution
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import planned, prod
from autopar.ir.ops import PRODUCTS
from autopar.ir.ops.shape.view import FREE
from autopar.ir.parts import parts_of
from autopar.ir.program import Program, Value

MEMORY = "memory"
"""The category of the entry that a device's memory is exceeded."""


def check_device_memory(program: Program, cluster: Cluster) -> tuple[ReportEntry, ...]:
    """Returns what is to be said of the memory that a rank takes; nothing if a device has it.

    Args:
        program: What a rank runs.
        cluster: The devices; their innermost level of links is a host.

    Raises:
        InvalidInputError: If a tensor is larger than the memory of a host, or stands for as much:
            one that is expanded takes no memory, but what reads it reads all of that. Products
            are left out, as of weights that are expanded over a batch.
    """
    if _all_bytes(program) <= cluster.memory_bytes:
        return ()
    held = max(map(rank_memory, parts_of(program)), key=lambda each: each.peak_bytes)
    host = cluster.memory_bytes * cluster.links[0].size
    unfolded = _largest_read(program)
    if max(held.largest_bytes, unfolded.largest_bytes) > host:
        largest = held if held.largest_bytes > host else unfolded
        raise InvalidInputError(
            f"{_described(program, largest)}; a host of cluster {cluster.name} has"
            f" {human_bytes(host)}. Is the shape right? If so, split it over more ranks, or name a"
            " cluster of larger devices"
        )
    if held.peak_bytes <= cluster.memory_bytes:
        return ()
    detail = (
        f"a rank holds up to {human_bytes(held.peak_bytes)}, {cluster.device} has"
        f" {human_bytes(cluster.memory_bytes)}; limit it by --memory, or split more"
    )
    return (ReportEntry(MEMORY, cluster.name, detail),)


def check_machine_memory(
    program: Program, memory_bytes: int, group_sizes: Mapping[str, int] | None = None
) -> None:
    """Refuses a program of which this machine can't hold what a rank takes.

    Args:
        program: What a rank runs, or the serial program.
        memory_bytes: What the machine has.
        group_sizes: Members of process groups by name, of an executable program.

    Raises:
        InvalidInputError: If a rank takes more at its peak.
    """
    if _all_bytes(program) <= memory_bytes:
        return
    held = rank_memory(program, group_sizes)
    if held.peak_bytes > memory_bytes:
        raise InvalidInputError(
            f"this machine has {human_bytes(memory_bytes)} of memory, and a rank takes"
            f" {human_bytes(held.peak_bytes)}: {_described(program, held)}. Run it on larger"
            " machines, or compile it for more ranks"
        )


def machine_bytes() -> int:
    """Returns the bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What the first rank takes, of which blocks are largest.

    Attributes:
        peak_bytes: At most at once.
        largest: The value of the largest piece of memory.
        largest_bytes: The bytes of that.
    """

    peak_bytes: int
    largest: str
    largest_bytes: int


def rank_memory(program: Program, group_sizes: Mapping[str, int] | None = None) -> RankMemory:
    """Returns what the first rank of a program with values takes. Outputs are dense."""
    main = program.main
    timeline = memory_timeline(program, execution=Execution(group_sizes=group_sizes or {}))
    sizes = {each.name: each.nbytes for each in timeline.lifetimes.buffers if each.kind != HOST}
    sizes |= {name: _bytes(main.values[name]) for name in main.outputs}
    largest = max(sizes, key=sizes.__getitem__)
    return RankMemory(max(timeline.peak_bytes, sizes[largest]), largest, sizes[largest])


def _largest_read(program: Program) -> RankMemory:
    """Returns the largest of the values that ops read one element after another."""
    main = program.main
    readers = (op for op in main.ops if op.kind not in FREE and op.kind not in PRODUCTS)
    sizes = {name: _bytes(main.values[name]) for op in readers for name in op.operands}
    largest = max(sizes, key=sizes.__getitem__, default="")
    return RankMemory(0, largest, sizes.get(largest, 0))


def _all_bytes(program: Program) -> int:
    """Returns the bytes of all values together, more than which nothing takes but temporaries."""
    return sum(map(_bytes, program.main.values.values()))


def _bytes(value: Value) -> int:
    """Returns the bytes of a value on the first rank."""
    return planned(prod(value.shape)) * DTYPE_BYTES[value.dtype]


def _described(program: Program, held: RankMemory) -> str:
    value = program.main.values[held.largest]
    makers = (op for op in program.main.ops if held.largest in op.results)
    op = next(makers, None)
    loc = value.loc if op is None else op.loc
    what = "an input" if op is None else f"the result of {op.kind}"
    place = f" at {loc}" if loc != UNKNOWN else ""
    shape = [planned(size) for size in value.shape]
    return (
        f"{held.largest}, {what}{place}, has shape {shape} on a rank and takes"
        f" {held.largest_bytes} bytes ({human_bytes(held.largest_bytes)})"
    )
