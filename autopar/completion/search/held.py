"""Held: what a rank keeps for long, by the layouts of a plan.

Parameters, state and buffers are there all the time; what the backward pass reads of the forward
pass, and the gradients that updates read, are there together at the turn. Their bytes are what
layouts can do about the peak, so search prices them where memory is short. The peak itself is
counted on the final program (`autopar.cost.memory`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.completion.call import Choice
from autopar.completion.graph import Graph
from autopar.completion.space import Form
from autopar.ir.layout import block_size
from autopar.ir.ops.table import MOVED
from autopar.ir.program import STORED_ROLES


class Held:
    """The values of a graph that are kept for long; views count as what they are views of.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        found = {
            self._root(value)
            for value in range(len(graph.values))
            if self._is_stored(value) or self._is_saved(value)
        }
        self.values = tuple(sorted(v for v in found if self._is_stored(v) or graph.producer[v]))

    def bytes(self, choices: Sequence[Choice], forms: Sequence[Form]) -> int:
        """Returns the bytes that the rank with the largest pieces keeps.

        Args:
            choices: Per op.
            forms: Per value, how it is stored.
        """
        return sum(
            self.piece_bytes(value, self._form(choices, forms, value)) for value in self.values
        )

    def piece_bytes(self, value: int, form: Form) -> int:
        """Returns the bytes of the largest piece of a value."""
        size = form.layout.mesh.axes_size
        pieces = (block_size(s.size, size(s.axes)) for dim in form.layout.dims for s in dim)
        return math.prod(pieces) * self.graph.itemsizes[value]

    def _form(self, choices: Sequence[Choice], forms: Sequence[Form], value: int) -> Form:
        producer = self.graph.producer[value]
        return (
            forms[value] if producer is None else choices[producer[0].index].produced[producer[1]]
        )

    def _is_stored(self, value: int) -> bool:
        return self.graph.producer[value] is None and self.graph.values[value].role in STORED_ROLES

    def _is_saved(self, value: int) -> bool:
        """Whether a later phase than that of its op reads a value."""
        producer = self.graph.producer[value]
        if producer is None:
            return False
        made = producer[0].op
        return any(
            (node.op.phase, node.op.microbatch) != (made.phase, made.microbatch)
            for node, _ in self.graph.uses[value]
        )

    def _root(self, value: int) -> int:
        """Returns the value that a value is a view of."""
        producer = self.graph.producer[value]
        while producer is not None:
            rule = producer[0].call.rule
            if rule.work or rule.linear != MOVED or len(producer[0].operands) != 1:
                break
            value = producer[0].operands[0]
            producer = self.graph.producer[value]
        return value
