"""Collectives: what is to be known of each kind of op that communicates, declared once.

The proof that ranks match, the cost model, the plan of what runs beside what, and the executors
read it here, and look up their own functions by it:

    kind           the kernel of real ranks (`runtime/collectives/communication.py`), its halves
                   where it is started (`async_collectives.py`), and its definition, by which the
                   virtual mesh computes (`reference.py`)
    price          the closed forms of its seconds (`cost/algorithms.py`)
    memory         the closed form of its memory (`cost/memory/collectives.py`)
    brings, gets   the size of each member's piece (`mapping/matching.py`)

A kind that isn't declared is an error wherever it is met.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autopar.base.errors import UNKNOWN, Loc, VerificationError
from autopar.ir.dtypes import FLOATS

if TYPE_CHECKING:
    from autopar.ir.program import Op

COMM = "comm."
"""Prefix of the kinds of all ops that communicate."""

ALL_REDUCE = "comm.all_reduce"
ALL_GATHER = "comm.all_gather"
REDUCE_SCATTER = "comm.reduce_scatter"
ALL_TO_ALL = "comm.all_to_all"
BROADCAST = "comm.broadcast"
PERMUTE = "comm.permute"
REDISTRIBUTE = "comm.redistribute"

WHOLE = "whole"
"""Of a dimension: all of it."""
BLOCK = "block"
"""Of a dimension: the member's block, by the rule of `autopar.ir.layout`."""
HELD, WINDOW = "held", "window"
"""Of a dimension: what a member holds and reads, by the arguments of `rules.redistribution`."""

OPERAND, RESULT = "operand", "result"

PLAIN_DTYPES = frozenset((*FLOATS, "i64", "i32", "i8", "u8"))
"""Dtypes that every backend takes as they are, and of which it forms sums itself."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of which members bring or get parts.

    Attributes:
        name: The argument that says which dimension it is.
        brings: What of it a member brings: `WHOLE`, `BLOCK` or `HELD`.
        gets: What of it a member gets: `WHOLE`, `BLOCK` or `WINDOW`.
        size: The argument that is the size of all of it; "" where members bring the whole.
    """

    name: str
    brings: str
    gets: str
    size: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """That the runtime starts a collective, which runs beside others until its result is read.

    Attributes:
        sums_only: Whether that holds of sums of `PLAIN_DTYPES` only: others aren't formed by the
            backend alone.
        alone: Whether one of the kind is under way at a time, since it takes the memory of a whole
            tensor; of moves between slices, one that a rank sends between the same two.
        keeps_operand: Whether the operand itself is sent, and stays until somebody waits. Then
            nothing is started that no op reads.
        replaces_operand: Whether the result may be written over an operand that nobody else reads.
    """

    sums_only: bool = False
    alone: bool = False
    keeps_operand: bool = False
    replaces_operand: bool = False


@dataclass(frozen=True, slots=True)
class Declaration:
    """A kind of collective. Its operand is `self`; it has one result, of as many dimensions.

    Attributes:
        kind: The kind of its ops, by which each executor finds its function.
        price: The name of its algorithms in the cost model.
        memory: The name of the closed form of what it takes while it is under way.
        dims: The dimensions of which members bring or get parts; of all others, what a member gets
            is what it brings, and all bring the same.
        integers: Further arguments that are integers, on which all members agree.
        members: Arguments that give a member by its position in the group.
        blocks: Which of `OPERAND` and `RESULT` is a block of the other, all of which travel as if
            they were as large as the largest; "" if neither is.
        halo: Whether only that travels which a member doesn't hold yet of its window; otherwise
            tensors do.
        start: How it is started; None if a rank waits where it stands.
    """

    kind: str
    price: str
    memory: str
    dims: tuple[Dim, ...] = ()
    integers: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    blocks: str = ""
    halo: bool = False
    start: Start | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the arguments that must be integers."""
        sizes = (dim.size for dim in self.dims if dim.size)
        return (*(dim.name for dim in self.dims), *sizes, *self.integers, *self.members)

    def is_async(self, monoid: object, dtype: str) -> bool:
        """Returns whether the runtime starts it and waits where its result is read first.

        Args:
            monoid: The reduction, of one that reduces.
            dtype: Of the elements.
        """
        if self.start is None or not self.start.sums_only:
            return self.start is not None
        return monoid == "sum" and dtype in PLAIN_DTYPES


_DECLARATIONS = (
    Declaration(
        ALL_REDUCE,
        price="all_reduce",
        memory="all_reduce",
        start=Start(sums_only=True, replaces_operand=True),
    ),
    Declaration(
        ALL_GATHER,
        price="all_gather",
        memory="all_gather",
        dims=(Dim("dim", BLOCK, WHOLE, "size"),),
        blocks=OPERAND,
        start=Start(keeps_operand=True),
    ),
    Declaration(
        REDUCE_SCATTER,
        price="reduce_scatter",
        memory="reduce_scatter",
        dims=(Dim("dim", WHOLE, BLOCK),),
        blocks=RESULT,
        start=Start(sums_only=True, alone=True, keeps_operand=True),
    ),
    Declaration(
        ALL_TO_ALL,
        price="all_to_all",
        memory="all_to_all",
        dims=(Dim("concat_dim", BLOCK, WHOLE, "concat_size"), Dim("split_dim", WHOLE, BLOCK)),
    ),
    Declaration(
        BROADCAST,
        price="broadcast",
        memory="copy",
        members=("source",),
        start=Start(alone=True),
    ),
    Declaration(PERMUTE, price="point_to_point", memory="permute"),
    Declaration(
        REDISTRIBUTE,
        price="point_to_point",
        memory="halo",
        dims=(Dim("dim", HELD, WINDOW, "size"),),
        integers=("block", "outputs", "outputs_block", "stride", "start", "length"),
        halo=True,
    ),
)

DECLARED: Mapping[str, Declaration] = {each.kind: each for each in _DECLARATIONS}
"""All there are, by the kind of their ops."""


def is_collective(kind: str) -> bool:
    """Returns whether ops of a kind communicate."""
    return kind.startswith(COMM)


def axes_of_group(op: Op) -> tuple[str, ...]:
    """Returns the mesh axes along which an op communicates; none of other ops, or after mapping."""
    axes = op.arg("axes") if is_collective(op.kind) else None
    return tuple(map(str, axes)) if isinstance(axes, tuple) else ()


def link_of(op: Op) -> str:
    """Returns between which slices of the mesh an op moves something, in order; "" of others."""
    among = op.arg("among")
    if among is not None:
        return f"{axes_of_group(op)} {among}"
    # After mapping, the name of the group says it.
    group = str(op.arg("group", ""))
    return group if is_collective(op.kind) and ":" in group else ""


def receivers_of(op: Op) -> int:
    """Returns to how many other places an op moves something between parts of the mesh."""
    among = op.arg("among")
    if isinstance(among, tuple):
        return len(among) - 1
    return str(op.arg("group", "")).partition(":")[2].count("-")


def declared(kind: str, loc: Loc = UNKNOWN) -> Declaration:
    """Returns what is declared of a collective.

    Args:
        kind: The kind of its op.
        loc: Where it comes from, for the message.

    Raises:
        VerificationError: If nothing is.
    """
    found = DECLARED.get(kind)
    if found is None:
        known = ", ".join(DECLARED)
        raise VerificationError("unknown collective", [f"{kind} ({loc}); there are {known}"])
    return found
