"""Memory of collectives: their results, and what the runtime takes while it communicates.

Formulas follow the runtime's collectives: blocks travel along dimension 0, so that a collective
along another dimension copies what it sends and what it gets. Sums, gathers and scattered sums are
started, and awaited where their result is read first; until then, what is sent stays, and so does
what arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from autopar.cost.halo import halo_bytes
from autopar.ir.collectives import OPERAND, Declaration
from autopar.ir.dims import block_size
from autopar.ir.memory.kernels import SHORT_GATHER_BYTES, SHORT_SUM_BYTES
from autopar.ir.memory.strides import Placed, is_contiguous
from autopar.ir.program import Arg


class MemoryUse(NamedTuple):
    """What a collective does with memory.

    Attributes:
        result_bytes: What its result takes; 0 if that is in memory that it has already.
        temporary_bytes: What is taken besides when it starts, and given back then.
        sent_bytes: A copy of the operand that is sent, and stays until somebody waits.
        arriving_bytes: Where it arrives, from the start on, if that isn't the result.
        ending_bytes: What is taken besides when the result is made of what has arrived.
        sends_operand: Whether the operand itself is sent, and stays until somebody waits.
    """

    result_bytes: int
    temporary_bytes: int = 0
    sent_bytes: int = 0
    arriving_bytes: int = 0
    ending_bytes: int = 0
    sends_operand: bool = False


class Collective(NamedTuple):
    """A collective on one rank.

    Attributes:
        args: Its arguments.
        operand: What the rank brings.
        result: What it gets.
        members: How many ranks take part.
        backend: `gloo` or `nccl`.
        is_async: Whether others run beside it.
        overwrites: Whether a sum may be written over the operand.
    """

    args: Mapping[str, Arg]
    operand: Placed
    result: Placed
    members: int
    backend: str = "gloo"
    is_async: bool = False
    overwrites: bool = False

    @property
    def packed_bytes(self) -> int:
        """Bytes of a contiguous copy of the operand; 0 if it is contiguous."""
        operand = self.operand
        return 0 if is_contiguous(operand.shape, operand.strides) else operand.nbytes

    def along(self, name: str) -> int:
        """Returns the dimension that an argument names, 0 if it is left out."""
        dim = self.args.get(name, 0)
        assert isinstance(dim, int)
        return dim % max(1, len(self.operand.shape))


def memory_use(declaration: Declaration, collective: Collective) -> MemoryUse:
    """Returns what a collective does with memory.

    Args:
        declaration: What is declared of it.
        collective: The rest.
    """
    # An empty block is padded like a short one, to be gathered.
    gets = declaration.blocks == OPERAND or (declaration.apart and not collective.operand.nbytes)
    moved = collective.result if gets else collective.operand
    if collective.members == 1 or moved.nbytes == 0:
        same = collective.operand.shape == collective.result.shape
        return MemoryUse(0 if same else collective.result.nbytes)
    taken = _FORMULAS[declaration.memory](collective)
    if collective.is_async:
        return taken
    # Awaited at once: what is pending is given back, too.
    besides = taken.arriving_bytes + max(taken.sent_bytes, taken.ending_bytes)
    return MemoryUse(taken.result_bytes, max(taken.temporary_bytes, besides))


def _copy(c: Collective) -> MemoryUse:
    return MemoryUse(c.result.nbytes, c.packed_bytes)


def _all_reduce(c: Collective) -> MemoryUse:
    """A short sum on gloo is gathered, and added up by every member."""
    if c.backend == "gloo" and c.members * c.operand.nbytes <= SHORT_SUM_BYTES:
        adding = c.result.nbytes if c.members > 2 else 0
        gathered = c.members * c.operand.nbytes
        temporary, sent = _gathering(c, gathered, c.packed_bytes)
        return MemoryUse(c.result.nbytes, temporary, sent, gathered, adding, not sent)
    if c.overwrites:
        return MemoryUse(c.packed_bytes)
    return MemoryUse(c.result.nbytes, c.packed_bytes)


def _all_gather(c: Collective) -> MemoryUse:
    dim = c.along("dim")
    size = c.result.shape[dim]
    rows = block_size(size, c.members) * c.members
    gathered = c.result.nbytes // max(1, size) * rows
    packed = c.operand.nbytes if dim or c.packed_bytes else 0
    if rows != size and c.operand.shape[dim] * c.members != rows:
        packed = gathered // c.members
    temporary, sent = _gathering(c, gathered, packed)
    if dim == 0:
        return MemoryUse(gathered, temporary, sent, sends_operand=not sent)
    return MemoryUse(c.result.nbytes, temporary, sent, gathered, sends_operand=not sent)


def _gathering(c: Collective, gathered: int, packed: int) -> tuple[int, int]:
    """Returns the bytes of what is packed only, and of what is sent: a copy for each, if short."""
    if c.backend == "gloo" and gathered <= SHORT_GATHER_BYTES:
        return packed, gathered
    return 0, packed


def _reduce_scatter(c: Collective) -> MemoryUse:
    dim, whole, piece = c.along("dim"), c.operand.nbytes, c.result.nbytes
    sent = whole if dim or c.packed_bytes else 0
    if c.backend == "gloo":
        # Every member is sent its block, and adds up what arrives.
        arriving, adding = c.members * piece, piece if c.members > 2 else 0
        return MemoryUse(piece, sent, sent, arriving, adding, not sent)
    return MemoryUse(piece, 0, sent, piece if dim else 0, sends_operand=not sent)


def _all_to_all(c: Collective) -> MemoryUse:
    sent, got = c.operand.nbytes, c.result.nbytes
    return MemoryUse(got, max(2 * sent - got, sent, got))


def _permute(c: Collective) -> MemoryUse:
    return MemoryUse(c.result.nbytes, c.operand.nbytes + c.packed_bytes)


def _halo(c: Collective) -> MemoryUse:
    halo = halo_bytes(c.args, c.result.shape, c.result.itemsize)
    copied = c.result.nbytes if c.along("dim") else 0
    return MemoryUse(c.result.nbytes, 2 * halo + copied)


def _transfer(c: Collective) -> MemoryUse:
    """What is sent is put together first; rows arrive in order, others are put in order."""
    if c.operand.nbytes:
        pieces = c.operand.nbytes if c.along("dim") or c.packed_bytes else 0
        return MemoryUse(0, pieces, c.operand.nbytes)
    if not c.along("dim"):
        return MemoryUse(c.result.nbytes)
    return MemoryUse(c.result.nbytes, arriving_bytes=c.result.nbytes)


_FORMULAS: Mapping[str, Callable[[Collective], MemoryUse]] = {
    "copy": _copy,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "halo": _halo,
    "transfer": _transfer,
}
"""By `Declaration.memory`."""
