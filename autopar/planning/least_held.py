"""What devices hold at least, whatever is decided: a limit below that is refused at once.

Parameters, state and the batch are there all the time, and when the first parameter is updated, so
are the gradients of all. However they are split, devices hold all of it together, so one of them
holds its share. Nothing of it is computed again or in parts; only the host's memory can take it.

To say what would be enough, plans are made and made to fit, which takes as long as a compilation.
So that is done for small programs, and where this bound proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.annotate import marked_offload
from autopar.cost import MemoryTimeline, memory_timeline
from autopar.ir.program import Program
from autopar.partition.recompute.does_not_fit import NeverFits
from autopar.planning.walk import FEW_OPS

STORED = ("parameter", "buffer", "optimizer_state", "input")
"""The roles of what is there all the time."""


@dataclass(frozen=True)
class LeastHeld:
    """What all devices hold together at least.

    Attributes:
        stored_bytes: Parameters, state and the batch.
        gradient_bytes: What is updated from, besides.
        whole_bytes: What one device holds at most that computes all of it at once.
    """

    stored_bytes: int
    gradient_bytes: int
    whole_bytes: int

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.stored_bytes + self.gradient_bytes

    @classmethod
    def of(cls, program: Program) -> LeastHeld:
        """Returns it of a serial program, of which nothing waits in the host's memory."""
        main, timeline = program.main, memory_timeline(program)
        of, buffers = timeline.lifetimes.buffers_of, timeline.lifetimes.buffers
        read = {name for op in main.ops for name in op.operands}
        names = [n for n in main.inputs if n in read and main.values[n].role in STORED]
        stored = {piece for name in names for piece in of[name] if buffers[piece].first < 0}
        stored_bytes = sum(buffers[piece].nbytes for piece in stored)
        return cls(stored_bytes, _gradient_bytes(program, timeline), timeline.peak_bytes)


def _gradient_bytes(program: Program, timeline: MemoryTimeline) -> int:
    """Returns the bytes of what the backward pass has made when the first parameter is updated."""
    ops, lifetimes = program.main.ops, timeline.lifetimes
    updates = [at for at, op in enumerate(ops) if op.phase == "update"]
    if not updates or any(op.phase != "update" for op in ops[updates[0] :]):
        return 0
    read = (name for at in updates for name in ops[at].operands)
    pieces = {piece for name in read for piece in lifetimes.buffers_of[name]}
    made = (lifetimes.buffers[piece] for piece in pieces)
    return sum(
        each.nbytes
        for each in made
        if 0 <= each.first < updates[0] and ops[each.first].phase == "backward"
    )


def refuse_impossible(
    program: Program, devices: int, memory_bytes: int, *, may_wait_on_host: bool
) -> None:
    """Refuses a limit of memory that nothing can hold, unless it is as quick to say what would.

    Args:
        program: The serial program.
        devices: How many there are.
        memory_bytes: What each may hold at once.
        may_wait_on_host: Whether anything stored may wait in the host's memory.

    Raises:
        NeverFits: If it is proven that a device would hold more.
    """
    if may_wait_on_host or marked_offload(program) or len(program.main.ops) <= FEW_OPS:
        return
    held = LeastHeld.of(program)
    if -(-held.nbytes // devices) > memory_bytes:
        raise NeverFits(
            held.nbytes, devices, memory_bytes, held.whole_bytes, trains=held.gradient_bytes > 0
        )
