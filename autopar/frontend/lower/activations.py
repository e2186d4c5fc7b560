"""Reads what a model's code says of its activations: notes of `annotate.activations` in a graph."""

from __future__ import annotations

from torch import fx

from autopar.ir.activations import NOTE, NUMBERED, RECOMPUTE, kept
from autopar.ir.program import Op


class Noted:
    """The notes of one graph, whose regions are numbered as they come."""

    def __init__(self) -> None:
        self._regions: dict[str, str] = {}

    def op(self, node: fx.Node, op: Op) -> Op:
        """Returns an op of a node with what is noted of it."""
        note = str((node.meta.get("custom") or {}).get(NOTE, ""))
        if not note or op.phase != "forward":
            return op
        choice, _, number = note.partition(" ")
        if choice != RECOMPUTE:
            return kept(op, choice)
        return kept(op, choice, self._regions.setdefault(number, f"{NUMBERED}{len(self._regions)}"))
