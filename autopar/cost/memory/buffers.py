"""Buffers: the pieces of memory that a rank's program takes, each from one op to another.

The memory of a step at any op is the sum of the buffers that live there. `lifetimes` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from autopar.ir.program import Op

PARAMETERS = "parameters"
STATE = "optimizer_state"
INPUTS = "inputs"
GRADIENTS = "gradients"
SAVED = "saved_activations"
TEMPORARIES = "temporaries"
COMMUNICATION = "communication"
KINDS = (PARAMETERS, STATE, INPUTS, GRADIENTS, SAVED, TEMPORARIES, COMMUNICATION)
"""What memory is for. Saved are values of the forward phase that the backward phase reads."""

HOST = "host"
"""The kind of memory that is the host's and not the device's."""


@dataclass(slots=True)
class Buffer:
    """A piece of memory.

    Attributes:
        name: The value for which it was taken.
        nbytes: Its bytes.
        kind: One of `KINDS`, or `HOST`.
        first: Position of the op that takes it; -1 if it is there from the beginning.
        last: Position of the last op during which it is there; the number of ops if it stays.
    """

    name: str
    nbytes: int
    kind: str
    first: int
    last: int


@dataclass(frozen=True)
class Lifetimes:
    """The memory of a function on one rank.

    Attributes:
        ops: Its ops, in the order in which they are executed.
        buffers: Everything that is taken, on the device and on its host.
        buffers_of: The buffers whose memory each value may be.
        temporary_bytes: Per op, what it takes and gives back while it runs.
        communication_bytes: The same of collectives.
        awaited_bytes: Per op, what there is besides what the op before left when it waits for
            collectives whose results it reads; 0 if it waits for none.
    """

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    buffers_of: Mapping[str, tuple[int, ...]]
    temporary_bytes: tuple[int, ...]
    communication_bytes: tuple[int, ...]
    awaited_bytes: tuple[int, ...]

    def at_bytes(self, size: Callable[[int], int] = int) -> list[int]:
        """Returns the bytes that are taken during each op.

        Args:
            size: What an allocator takes for a number of bytes.
        """
        live = self._live(size, (buffer for buffer in self.buffers if buffer.kind != HOST))
        besides = map(size, self.temporary_bytes), map(size, self.communication_bytes)
        taken = list(map(sum, zip(live, *besides, strict=True)))
        waits = [index for index, nbytes in enumerate(self.awaited_bytes) if nbytes]
        left = self.after_bytes(size) if waits else []
        for index in waits:
            before = left[index - 1] if index else 0
            taken[index] = max(taken[index], before + size(self.awaited_bytes[index]))
        return taken

    def after_bytes(self, size: Callable[[int], int] = int) -> list[int]:
        """Returns the bytes that are still taken after each op; argument as `at_bytes`."""
        change = [0] * (len(self.ops) + 2)
        for buffer in self.buffers:
            if buffer.kind != HOST:
                change[max(buffer.first, 0)] += size(buffer.nbytes)
                change[max(buffer.last, 0)] -= size(buffer.nbytes)
        return list(accumulate(change[: len(self.ops)]))

    def host_peak_bytes(self, pieces: Iterable[int]) -> int:
        """Returns the most bytes of the host's memory that some of the buffers take at a time."""
        buffers = (self.buffers[piece] for piece in pieces)
        live = self._live(int, (buffer for buffer in buffers if buffer.kind == HOST))
        return max(live, default=0)

    def host_bytes(self) -> list[int]:
        """Returns the bytes of the host's memory that are taken during each op."""
        return self._live(int, (buffer for buffer in self.buffers if buffer.kind == HOST))

    def _live(self, size: Callable[[int], int], buffers: Iterable[Buffer]) -> list[int]:
        """Returns the bytes of buffers that are there during each op."""
        change = [0] * (len(self.ops) + 2)
        for buffer in buffers:
            change[max(buffer.first, 0)] += size(buffer.nbytes)
            change[buffer.last + 1] -= size(buffer.nbytes)
        return list(accumulate(change[: len(self.ops)]))


@dataclass(frozen=True, slots=True)
class Execution:
    """How a program is executed, as far as memory depends on it.

    Attributes:
        in_place: Whether new content is written into stored inputs, as a trainer does.
        backend: Who communicates, `gloo` or `nccl`.
        dense_copies: Whether operands are copied before kernels that want them dense, as the
            runtime does; kernels of torch see to that themselves.
        group_sizes: Members of process groups by name; needed for executable programs only.
        until: Per op, the last one that keeps what it reads: if there are none, itself.
        kept_until: The op until after which a value is kept by others than ops.
    """

    in_place: bool = True
    backend: str = "gloo"
    dense_copies: bool = True
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    until: Sequence[int] = ()
    kept_until: Mapping[str, int] = field(default_factory=dict)


AUTOGRAD = Execution(in_place=False, dense_copies=False)
"""How PyTorch itself runs a module."""
