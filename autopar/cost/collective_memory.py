"""Memory of collectives: their results, and what the runtime takes while it communicates.

Formulas follow the runtime's collectives: blocks travel along dimension 0, so that a collective
along another dimension copies what it sends and what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from autopar.cost.halo import halo_bytes
from autopar.cost.kernel_results import Placed
from autopar.cost.strides import is_contiguous
from autopar.ir.layout import block_size
from autopar.ir.program import Arg

STARTABLE = frozenset(("f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8"))
"""Dtypes of which backends form sums themselves, beside what is computed meanwhile."""


class Exchange(NamedTuple):
    """What a collective does with memory.

    Attributes:
        result_bytes: What its result takes; 0 if that is in the operand's memory.
        temporary_bytes: What is taken besides, and given back at its end.
    """

    result_bytes: int
    temporary_bytes: int = 0


class Collective(NamedTuple):
    """A collective on one rank.

    Attributes:
        args: Its arguments; integers are those of the rank.
        operand: What the rank brings.
        result: What it gets.
        members: How many ranks take part.
        overwrites: Whether a sum may be written over the operand.
        native_reduce_scatter: Whether the backend has such a collective.
    """

    args: Mapping[str, Arg]
    operand: Placed
    result: Placed
    members: int
    overwrites: bool = False
    native_reduce_scatter: bool = False

    @property
    def packed_bytes(self) -> int:
        """Bytes of a contiguous copy of the operand; 0 if it is contiguous."""
        operand = self.operand
        return 0 if is_contiguous(operand.shape, operand.strides) else operand.nbytes

    def along(self, name: str) -> int:
        """Returns the dimension that an argument names."""
        found = self.args[name]
        assert isinstance(found, int)
        return found % len(self.operand.shape)


def exchange(kind: str, collective: Collective) -> Exchange:
    """Returns what a collective does with memory.

    Args:
        kind: Its kind, such as `comm.all_gather`.
        collective: The rest.
    """
    if collective.members == 1 or collective.operand.nbytes == 0:
        same = collective.operand.shape == collective.result.shape
        return Exchange(0 if same else collective.result.nbytes)
    formula = _FORMULAS.get(kind)
    if formula is None:
        return Exchange(collective.result.nbytes, collective.packed_bytes)
    return formula(collective)


def _all_reduce(c: Collective) -> Exchange:
    if c.overwrites:
        return Exchange(c.packed_bytes)
    return Exchange(c.result.nbytes, c.packed_bytes)


def _all_gather(c: Collective) -> Exchange:
    dim = c.along("dim")
    size = c.result.shape[dim]
    rows = block_size(size, c.members) * c.members
    gathered = c.result.nbytes // max(1, size) * rows
    padded = 0 if rows == size else gathered // c.members
    if dim == 0:
        return Exchange(gathered, max(padded, c.packed_bytes))
    return Exchange(c.result.nbytes, max(c.operand.nbytes + padded, gathered))


def _reduce_scatter(c: Collective) -> Exchange:
    dim, whole, piece = c.along("dim"), c.operand.nbytes, c.result.nbytes
    if not c.native_reduce_scatter:
        # Every member is sent its block, and reduces what arrives.
        return Exchange(piece, max(2 * whole - piece, whole + piece))
    even = c.operand.shape[0] % c.members == 0
    if dim == 0 and even:
        return Exchange(piece, c.packed_bytes)
    return Exchange(piece, whole + piece)


def _all_to_all(c: Collective) -> Exchange:
    sent, got = c.operand.nbytes, c.result.nbytes
    return Exchange(got, max(2 * sent - got, sent, got))


def _permute(c: Collective) -> Exchange:
    return Exchange(c.result.nbytes, c.operand.nbytes + c.packed_bytes)


def _redistribute(c: Collective) -> Exchange:
    halo = halo_bytes(c.args, c.result.shape, c.result.itemsize)
    copied = c.result.nbytes if c.along("dim") else 0
    return Exchange(c.result.nbytes, 2 * halo + copied)


_FORMULAS: Mapping[str, Callable[[Collective], Exchange]] = {
    "comm.all_reduce": _all_reduce,
    "comm.all_gather": _all_gather,
    "comm.reduce_scatter": _reduce_scatter,
    "comm.all_to_all": _all_to_all,
    "comm.permute": _permute,
    "comm.redistribute": _redistribute,
}
