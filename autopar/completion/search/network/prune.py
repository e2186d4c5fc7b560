"""Pruning: ways to compute an op that no fastest plan needs, found before anything is searched.

Where computing takes longer than reshards, most ways to split an op are slower than another way by
more than it takes to bring what that one reads and leaves into the same forms. In any plan with
such a way the other one can take its place, and the plan is no slower: so it is no candidate. What
search and proof take grows with the third power of the candidates, of which on three axes there are
hundreds per op.

What a form is used for besides counts too: of a value that others read, or that another phase
reads, what they got from the form before must be had from the one in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.completion.problem.graph import Graph, Node
from autopar.completion.problem.space import Form
from autopar.completion.search.network.candidates import Candidates
from autopar.cost.reshard.bulk import BulkPlanner

MANY = 128
"""From so many ways on it takes less time to leave some out than to search them."""

SAFETY = 2.0
"""Reshards count so many times: those between uneven splits may take more than is known yet."""

Table = NDArray[np.float64]


@dataclass(frozen=True)
class _Use:
    """What a value is used for, as far as it matters to how an op needs or leaves it.

    Attributes:
        readers: How many read it, or keep it.
        phases: Whether in several phases.
        is_kept: Whether in another phase than that of the op which makes it.
        times: How often it is brought to a reader, at most.
    """

    readers: int
    phases: bool
    is_kept: bool
    times: int


class Pruning:
    """Leaves out ways to compute the ops of a graph.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._bulk = BulkPlanner(graph.space.planner.model)
        self._known: dict[object, Candidates] = {}
        self._tables: dict[tuple[tuple[Form, ...], int], Table] = {}

    def pruned(self, node: Node, candidates: Candidates) -> Candidates:
        """Returns the candidates of an op that may be part of a fastest plan.

        Args:
            node: The op.
            candidates: All ways to compute it.
        """
        if len(candidates.choices) < MANY:
            return candidates
        uses = [*map(self._use, node.operands), *map(self._use, node.results)]
        key = candidates, *uses
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = candidates.only(self._instead(node, candidates, uses))
        return found

    def _instead(self, node: Node, candidates: Candidates, uses: Sequence[_Use]) -> list[int]:
        """Returns per candidate the one that takes its place, which is none that is left out."""
        added = SAFETY * self._added(node, candidates, uses)
        slower = np.array(candidates.least_seconds)[:, None] - np.array(candidates.seconds)
        gained = np.where(slower > 0, slower - added, -np.inf)
        stays = np.array((gained < 0).all(axis=1))
        best = np.where(stays, gained, -np.inf).argmax(axis=1)
        instead: list[int] = np.where(stays, np.arange(len(stays)), best).tolist()
        return instead

    def _use(self, value: int) -> _Use:
        graph = self.graph
        producer = graph.producer[value]
        made = [producer[0].lifetime] if producer is not None else []
        phases = [node.lifetime for node, _ in graph.uses[value]]
        phases += made if value in graph.outputs else []
        return _Use(
            len(phases),
            len(set(phases)) > 1,
            bool(made and {*phases} - {*made}),
            graph.times_read[value],
        )

    def _added(self, node: Node, candidates: Candidates, uses: Sequence[_Use]) -> Table:
        """Returns what it adds at most if the way of a column takes the place of that of a row."""
        count = len(candidates.choices)
        added = np.zeros((count, count))
        values = (*node.operands, *node.results)
        of_values = (*candidates.consumed, *candidates.produced)
        for position, (value, use, ends) in enumerate(zip(values, uses, of_values, strict=True)):
            forms = tuple(dict.fromkeys(ends))
            number = {form: position for position, form in enumerate(forms)}
            index = [number[form] for form in ends]
            of = self._read if position < len(node.operands) else self._left
            table = of(forms, self.graph.itemsizes[value], use)
            added += use.times * table.take(index, axis=1).take(index, axis=0)
        return added

    def _read(self, forms: tuple[Form, ...], itemsize: int, use: _Use) -> Table:
        """Returns what it adds if an op reads one form instead of another."""
        seconds = self._seconds(forms, itemsize)
        if use.readers > 1:
            # Others get what they need from either.
            seconds = seconds + seconds.T
        if use.phases:
            parts = self._parts(forms)
            seconds = np.where(parts[None, :] < parts[:, None], np.inf, seconds)
        return seconds

    def _left(self, forms: tuple[Form, ...], itemsize: int, use: _Use) -> Table:
        """Returns what it adds if an op leaves one form instead of another."""
        seconds = use.readers * self._seconds(forms, itemsize).T
        parts = self._parts(forms)
        if use.phases:
            seconds = np.where(parts[None, :] > parts[:, None], np.inf, seconds)
        if use.is_kept:
            seconds = np.where(parts[None, :] < parts[:, None], np.inf, seconds)
        return seconds

    def _seconds(self, forms: tuple[Form, ...], itemsize: int) -> Table:
        found = self._tables.get((forms, itemsize))
        if found is None:
            found = self._bulk.reshard_seconds([form.layout for form in forms], itemsize)
            self._tables[forms, itemsize] = found
        return found

    def _parts(self, forms: Sequence[Form]) -> NDArray[np.int64]:
        return np.array(list(map(self.graph.space.parts, forms)), dtype=np.int64)
