"""Bound: seconds that a reshard takes at least, whatever moves it consists of.

A device gets what it doesn't hold from others, and so does a group of devices that fast links join.
What the group doesn't hold crosses the border around it, over slower links. How much that is, and
from how many sources it comes, follows from the two layouts alone.

Without it reshards on 8x8x4 take 3.5 CPU seconds to plan instead of 1.4 (`benchmarks/without.py`),
and with more than four axes there is no other bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.cost.collectives import Border, CommunicationModel
from autopar.cost.reshard.moves import Axes, LayoutGraph
from autopar.cost.reshard.slots import Numbers, SlotTable
from autopar.ir.expr.expression import planned, prod
from autopar.ir.layout import Layout


class Bound:
    """Bounds reshards to one goal.

    Args:
        graph: The layouts and the moves between them.
        goal: Where paths lead.
        itemsize: Bytes per element.
    """

    def __init__(self, graph: LayoutGraph, goal: Layout, itemsize: int) -> None:
        self.table = graph.table
        self.goal = self.table.numbered(goal.dims)
        self.itemsize = itemsize
        self.nbytes = graph.nbytes(self.goal, itemsize)
        self.stored = graph.model.local_copy(self.nbytes)
        whole_bytes = planned(prod(goal.shape)) * itemsize
        self.crossings = [
            _Crossing(border, self.table, goal, whole_bytes, self.nbytes)
            for border in self.table.borders
        ]

    def least_seconds(self, dims: Numbers, due: Axes) -> float:
        """Returns seconds that a path takes at least that local moves alone don't make up.

        A message that crosses an outer border crosses the inner ones too, so an outer one adds
        only what its links are slower.

        Args:
            dims: The layout at the beginning.
            due: The axes along which a sum is pending that the goal has everywhere.
        """
        borders = range(len(self.crossings))
        return self.of_shared([self.table.shared(dims, self.goal, each) for each in borders], due)

    def of_shared(self, shared: Sequence[int], due: Axes) -> float:
        """Returns these seconds, given what groups of devices have of their pieces of the goal.

        Args:
            shared: Per border, at most how many elements of a piece.
            due: The axes along which a sum is pending that the goal has everywhere.
        """
        total = self.stored
        alpha = beta = 0.0
        for number, (crossing, elements) in enumerate(zip(self.crossings, shared, strict=True)):
            messages, nbytes = crossing.least(elements * self.itemsize, due)
            if not number:
                # A last collective leaves the goal's bytes, of which it moves half or more.
                messages, nbytes = max(messages, 1.0), max(nbytes, self.nbytes / 2)
            total += messages * (crossing.alpha - alpha) + nbytes * (crossing.beta - beta)
            alpha, beta = crossing.alpha, crossing.beta
        return total


def hearing_seconds(
    model: CommunicationModel, axes: Sequence[str], along: Sequence[str], blocks: int
) -> float:
    """Returns seconds that pass at least until a device has heard of all blocks of a dimension.

    Args:
        model: Predicts seconds.
        axes: Over which devices may communicate.
        along: Of these, along which devices have different blocks.
        blocks: How many there are that aren't empty.
    """
    total = alpha = 0.0
    for border in model.borders(axes):
        others = blocks / border.members(along)
        if others > 1:
            growth = math.log(border.members(axes) + 1)
            total += max(math.log(others) / growth, 1.0) * (border.alpha - alpha)
        alpha = border.alpha
    return total


class _Crossing:
    """What crosses a border on the way to one goal.

    Args:
        border: The border.
        table: Counts processes.
        goal: Where paths lead.
        whole_bytes: Bytes of the whole tensor.
        piece_bytes: Bytes of the goal's largest piece.
    """

    def __init__(
        self,
        border: Border,
        table: SlotTable,
        goal: Layout,
        whole_bytes: int,
        piece_bytes: int,
    ) -> None:
        self.table = table
        self.alpha, self.beta = border.alpha, border.beta
        self.border = border
        self.whole_bytes = whole_bytes
        self.piece_bytes = piece_bytes
        self.devices = border.members(table.axes)
        self.growth = math.log(self.devices + 1)
        self.groups = table.count(table.axes) // self.devices
        self.pieces = border.members(goal.sharded_axes)
        """Different pieces of the goal in a group."""
        self.parts = table.count(tuple(goal.sharded_axes)) // self.pieces
        """Different groups, by the pieces they have."""
        self._known: dict[tuple[float, Axes], tuple[float, float]] = {}

    def least(self, shared: float, due: Axes) -> tuple[float, float]:
        """Returns how many messages one after the other, and bytes per device, cross it at least.

        Args:
            shared: At most how many bytes of a goal's piece a group holds.
            due: The axes along which a sum is pending.
        """
        found = self._known.get((shared, due))
        if found is None:
            found = self._known[shared, due] = self._least(shared, due)
        return found

    def _least(self, shared: float, due: Axes) -> tuple[float, float]:
        if not self.piece_bytes:
            return 0.0, 0.0
        terms = self.table.count(due) // self.border.members(due)
        if terms > 1:
            return self._messages(terms * self.piece_bytes / shared), self._reduced_bytes(terms)
        # Of the group with the largest piece, or of the average one.
        missing = max(
            self.piece_bytes - shared, self.whole_bytes / self.parts - self.pieces * shared
        )
        if missing <= 0:
            return 0.0, 0.0
        return self._messages(self.piece_bytes / shared), missing / self.devices

    def _messages(self, sources: float) -> float:
        """With a message to each of its d devices, a group gets data of d others at most."""
        return max(math.log(sources) / self.growth, 1.0)

    def _reduced_bytes(self, terms: int) -> float:
        """Bytes per device to reduce as many terms.

        Reducing p terms of a byte takes p - 1 messages, and bringing the result to the groups that
        don't have it as many more as these are. All devices share that.
        """
        copies = self.groups // self.parts
        shared = self.whole_bytes * (copies + terms - 2) / (self.groups * self.devices)
        return max(shared, self.piece_bytes / self.devices)
