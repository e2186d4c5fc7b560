"""Memory price: what a rank keeps for long, by the layouts of a plan.

Parameters, state and buffers are there all the time; what the backward pass reads of the forward
pass, and the gradients that updates read, are there together at the turn. Where there is no turn,
what is there where the serial program holds the most, as logits, takes their place. Their
bytes are what layouts can do about the peak, so search prices them where memory is short. The peak
itself is counted on the final program (`autopar.cost.memory.timeline`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.search.network.network import Array, Network
from autopar.completion.search.network.transfer import Ends
from autopar.ir.dims import block_size
from autopar.ir.expr.expression import planned, prod
from autopar.ir.ops.table import MOVED
from autopar.ir.program import STORED_ROLES


@dataclass(frozen=True)
class MemoryPrice:
    """What a byte costs that a rank holds at the peak.

    Layers that are alike all change at the same price. Between their plans before and after that
    are those in which only some of them do: the first ones have another price than the rest.

    Attributes:
        early: Seconds per byte of values of the first layers.
        late: Seconds per byte of the others.
        until: The part of the values that are of the first layers.
        is_sure: Whether only those bytes cost something that are there at once whatever is computed
            again: no program holds fewer at its peak.
    """

    early: float = 0.0
    late: float = 0.0
    until: float = 0.0
    is_sure: bool = False

    @classmethod
    def of_all(cls, byte_seconds: float, *, is_sure: bool = False) -> MemoryPrice:
        """Returns the same price for all values."""
        return cls(byte_seconds, byte_seconds, is_sure=is_sure)

    @property
    def is_free(self) -> bool:
        """Whether no byte costs anything."""
        return not self.early and not self.late


FREE = MemoryPrice()


class ResidentValues:
    """The values of a graph that are there at the peak; views count as what they are views of.

    Args:
        graph: The graph.
        partial: Ops of which not all ways are candidates: other ways may make smaller pieces.
    """

    def __init__(self, graph: Graph, partial: Container[int] = ()) -> None:
        self.graph = graph
        self._partial = partial
        roots = {
            self._root(value)
            for value in range(len(graph.values))
            if self._is_stored(value) or self._is_saved(value)
        }
        if not any(map(self._is_saved, range(len(graph.values)))):
            roots |= set(self._at_peak())
        self.values = tuple(sorted(v for v in roots if self._is_stored(v) or graph.producer[v]))
        self._place = self._places()
        self._sure = self._surely()

    def total_seconds(
        self, choices: Sequence[Choice], forms: Sequence[Form], price: MemoryPrice
    ) -> float:
        """Returns the price of what the rank with the largest pieces holds.

        Args:
            choices: Per op.
            forms: Per value, how it is stored.
            price: Of a byte.
        """
        return sum(
            self.byte_seconds(value, price)
            * self.piece_bytes(value, self._form(choices, forms, value))
            for value in self.values
        )

    def byte_seconds(self, value: int, price: MemoryPrice) -> float:
        """Returns the price of a byte of a value."""
        if price.is_sure and value not in self._sure:
            return 0.0
        return price.early if self._place[value] < price.until else price.late

    def piece_bytes(self, value: int, form: Form) -> int:
        """Returns the bytes of the largest piece of a value."""
        size = form.layout.mesh.axes_size
        pieces = (
            planned(block_size(s.size, size(s.axes))) for dim in form.layout.dims for s in dim
        )
        return math.prod(pieces) * self.graph.itemsizes[value]

    def charge(
        self, network: Network, places: Sequence[tuple[int, Ends]], value: int, price: MemoryPrice
    ) -> None:
        """Adds the price of a value's bytes to the labels of a variable.

        Args:
            network: Of the variable.
            places: The variable, with the form of the value by each label; more are ignored.
            value: The value.
            price: Of a byte.
        """
        byte_seconds = self.byte_seconds(value, price)
        if not places or not byte_seconds:
            return
        variable, ends = places[0]

        def make() -> Array:
            pieces = [self.piece_bytes(value, form) for form in ends.of_label]
            return byte_seconds * np.array(pieces, dtype=float)

        key = ("resident", ends, self.graph.itemsizes[value], byte_seconds)
        network.charge(variable, network.costs.number_of(key, make))

    def _form(self, choices: Sequence[Choice], forms: Sequence[Form], value: int) -> Form:
        producer = self.graph.producer[value]
        if producer is None or value in self.graph.outputs:
            return forms[value]
        return choices[producer[0].index].produced[producer[1]]

    def _places(self) -> dict[int, float]:
        """Returns which part of the values belong to layers before a value's.

        What only updates read, as state and gradients, is apart from what the forward pass uses.
        """
        first = {value: min(turns_of) for value in self.values if (turns_of := self._turns(value))}
        last = {value: self._last_turn(value) for value in self.values if value not in first}
        return {
            value: place / len(turns)
            for turns in (first, last)
            for place, value in enumerate(sorted(turns, key=turns.__getitem__))
        }

    def _turns(self, value: int) -> list[int]:
        """Returns where ops of the forward pass make or read a value."""
        producer = self.graph.producer[value]
        nodes = [node for node, _ in self.graph.uses[value]] + ([producer[0]] if producer else [])
        return [self.graph.order[node.index] for node in nodes if node.op.phase == "forward"]

    def _last_turn(self, value: int) -> int:
        uses = self.graph.uses[value]
        return max((self.graph.order[node.index] for node, _ in uses), default=-1)

    def _surely(self) -> set[int]:
        """Returns the values that are there at once in every program.

        What is stored always is, and beside it the largest result, when it is made.
        """
        stored, made = set(), []
        for value in self.values:
            producer = self.graph.producer[value]
            if producer is None:
                stored.add(value)
            elif producer[0].call.rule.work and producer[0].index not in self._partial:
                made.append(value)
        return stored | set(sorted(made, key=self._whole_bytes)[-1:])

    def _whole_bytes(self, value: int) -> int:
        return planned(prod(self.graph.values[value].global_shape)) * self.graph.itemsizes[value]

    def _is_stored(self, value: int) -> bool:
        return self.graph.producer[value] is None and self.graph.values[value].role in STORED_ROLES

    def _is_saved(self, value: int) -> bool:
        """Whether a later phase than that of its op reads a value."""
        producer = self.graph.producer[value]
        if producer is None:
            return False
        made = producer[0].op
        return any(node.op.lifetime != made.lifetime for node, _ in self.graph.uses[value])

    def _at_peak(self) -> Iterator[int]:
        """Yields the activations that are there where the serial program holds the most of them."""
        graph = self.graph
        last: dict[int, int] = {}
        for value in range(len(graph.values)):
            end = len(graph.nodes) if value in graph.outputs else self._last_turn(value)
            root = self._root(value)
            last[root] = max(last.get(root, -1), end)
        spans = {
            value: (graph.order[producer[0].index], end)
            for value, end in last.items()
            if (producer := graph.producer[value]) is not None
        }
        change = [0] * (len(graph.nodes) + 2)
        for value, (first, end) in spans.items():
            change[first] += self._whole_bytes(value)
            change[max(first, end) + 1] -= self._whole_bytes(value)
        live = list(accumulate(change))
        peak = live.index(max(live))
        yield from (value for value, (first, end) in spans.items() if first <= peak <= end)

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
