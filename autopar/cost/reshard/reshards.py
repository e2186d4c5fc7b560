"""What a reshard is: the moves that lead from one layout of a tensor to another."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cost.reshard.places import Place
from autopar.ir.layout import Layout


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a reshard.

    Attributes:
        kind: `all_gather`, `all_reduce`, `reduce_scatter` and `all_to_all` are those collectives.
            `permute` sends every process's piece to one other, which the axes of the new layout
            name; `redistribute` cuts a dimension into the blocks of other axes. Local are `slice`;
            `to_partial`, which keeps the tensor on the first process of the axis and puts the
            monoid's identity elsewhere; and `reshape_empty`, which gives a tensor without elements
            its new local shape. Between slices of a mesh lead `restrict`, after which only the
            processes of a part count, and which is local; `send` to the same coordinates on another
            slice; `transfer`, which sends the blocks of a dimension to another part that cuts it
            otherwise; and `spread` from one index of the axes to all.
        axes: The mesh axes of the group, major to minor.
        layout: The layout afterwards.
        source: The sub-dimension that the axes split before and no longer do.
        target: The sub-dimension that they split from now on. Its further axes are major to them.
        monoid: The reduction of all_reduce, reduce_scatter and to_partial.
        seconds: Predicted time.
        bytes: Size of the result of a collective on the rank with the largest piece; 0 if local.
    """

    kind: str
    axes: tuple[str, ...]
    layout: Layout
    source: Place | None = None
    target: Place | None = None
    monoid: str = ""
    seconds: float = 0.0
    bytes: int = 0

    def __str__(self) -> str:
        over = f" {self.monoid}" if self.monoid else ""
        return f"{self.kind}{over} over {','.join(self.axes)} -> {self.layout}"


@dataclass(frozen=True, slots=True)
class Reshard:
    """A way from one layout to another.

    Attributes:
        moves: In order; empty if the layouts are the same.
        seconds: Predicted time.
        bytes: Results of all collectives, on the rank with the largest pieces.
    """

    moves: tuple[Move, ...]
    seconds: float
    bytes: int

    @classmethod
    def from_moves(cls, moves: tuple[Move, ...]) -> Reshard:
        """Returns the reshard that consists of some moves."""
        return cls(moves, sum(move.seconds for move in moves), sum(move.bytes for move in moves))
