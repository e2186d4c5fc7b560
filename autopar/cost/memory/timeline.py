"""Memory over time: what a rank holds at each op of its program, and where that is most.

Everything follows from the lifetimes of buffers; nothing is run. Bytes are those of the tensors'
storages, each counted once however many views there are, as an allocator rounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autopar.cost.memory.buffers import (
    COMMUNICATION,
    HOST,
    KINDS,
    SAVED,
    TEMPORARIES,
    Execution,
    Lifetimes,
)
from autopar.cost.memory.lifetimes import lifetimes
from autopar.ir.program import Program


@dataclass(frozen=True, slots=True)
class Allocator:
    """How much memory is taken for a tensor.

    Attributes:
        name: What it is.
        granule_bytes: Sizes are rounded up to a multiple of this.
    """

    name: str
    granule_bytes: int = 1

    def size(self, nbytes: int) -> int:
        """Returns the bytes that are taken for as many."""
        return -(-nbytes // self.granule_bytes) * self.granule_bytes


EXACT = Allocator("exact")
"""Counts the bytes of elements."""

CPU = Allocator("cpu", 64)
"""Torch's CPU allocator aligns to 64 bytes."""

CUDA = Allocator("cuda", 512)
"""Torch's caching allocator rounds to 512 bytes. What blocks it keeps for later isn't counted."""


@dataclass(frozen=True)
class MemoryTimeline:
    """The memory of a rank while it runs its program once. Ops by their position in `main`.

    Attributes:
        lifetimes: The pieces of memory, and when they are there.
        allocator: How their bytes are counted.
        at_bytes: What is taken during each op, its results and temporaries included.
        after_bytes: What is still taken after each op.
    """

    lifetimes: Lifetimes
    allocator: Allocator
    at_bytes: tuple[int, ...]
    after_bytes: tuple[int, ...]

    @cached_property
    def peak_at(self) -> int:
        """The first op during which most is taken; -1 for a program without ops."""
        return max(range(len(self.at_bytes)), key=self.at_bytes.__getitem__, default=-1)

    @property
    def peak_bytes(self) -> int:
        """The most that is taken."""
        return self.at_bytes[self.peak_at] if self.at_bytes else self.stored_bytes

    @cached_property
    def stored_bytes(self) -> int:
        """What is taken before the first op: parameters, state, inputs."""
        size, stored = self.allocator.size, (b for b in self.lifetimes.buffers if b.first < 0)
        return sum(size(each.nbytes) for each in stored if each.kind != HOST)

    @cached_property
    def saved_bytes(self) -> int:
        """Activations of the forward phase that are kept for the backward phase."""
        size = self.allocator.size
        return sum(size(each.nbytes) for each in self.lifetimes.buffers if each.kind == SAVED)

    @cached_property
    def host_bytes(self) -> int:
        """The most that is taken of the host's memory, by what is offloaded there."""
        return max(self.lifetimes.host_bytes(), default=0)

    def breakdown_bytes(self) -> dict[str, int]:
        """Returns what is taken at the peak, by kind (see `autopar.cost.memory.buffers.KINDS`)."""
        position = self.peak_at
        breakdown = dict.fromkeys(KINDS, 0)
        size = self.allocator.size
        for each in self.lifetimes.buffers:
            if each.kind != HOST and each.first <= position <= each.last:
                breakdown[each.kind] += size(each.nbytes)
        if 0 <= position < len(self.at_bytes):
            breakdown[TEMPORARIES] += size(self.lifetimes.temporary_bytes[position])
            breakdown[COMMUNICATION] += size(self.lifetimes.communication_bytes[position])
        return breakdown


def memory_timeline(
    program: Program,
    coords: Mapping[str, int] | None = None,
    *,
    allocator: Allocator = EXACT,
    execution: Execution | None = None,
) -> MemoryTimeline:
    """Returns the memory of a rank over time. Linear in the size of the program.

    That the peak of the first rank is the highest holds where blocks are even; see `peak_rank`.

    Args:
        program, coords, execution: As of `lifetimes`.
        allocator: How bytes are counted.
    """
    return timeline(lifetimes(program, coords, execution), allocator)


def timeline(lifetimes: Lifetimes, allocator: Allocator = EXACT) -> MemoryTimeline:
    """Returns the memory over time that these lifetimes are."""
    size = allocator.size
    during, after = lifetimes.at_bytes(size), lifetimes.after_bytes(size)
    return MemoryTimeline(lifetimes, allocator, tuple(during), tuple(after))
