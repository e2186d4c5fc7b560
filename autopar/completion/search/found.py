"""Found: what a search found: a plan, its seconds, and what every plan takes at least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.propagate.solve import Solution
from autopar.ir.layout import Origin


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        solution: The best plan.
        seconds: Its predicted seconds, with the price of the bytes that it keeps, if any.
        bound_seconds: Seconds that every plan takes at least; 0 if that isn't known.
    """

    solution: Solution
    seconds: float
    bound_seconds: float

    @property
    def gap(self) -> float:
        """The part of the seconds that the bound leaves open."""
        if self.seconds <= self.bound_seconds or not self.seconds:
            return 0.0
        return 1 - self.bound_seconds / self.seconds


def tied(graph: Graph, forms: Sequence[Form]) -> list[Form]:
    """Returns the forms of values, of which new contents lie as what they are the contents of.

    Args:
        graph: The graph.
        forms: Per value, how it is stored.
    """
    found = list(forms)
    for out, into in graph.aliases:
        if graph.pins[out] is None:
            found[out] = graph.like(out, into, found[into])
    return found


def solution_of(graph: Graph, choices: list[Choice], forms: list[Form]) -> Solution:
    """Returns a plan as what completion decided.

    Args:
        graph: The graph; outputs that share storage with an input are marked as such.
        choices: Per op.
        forms: Per value, how it is stored, `tied`.
    """
    for out, into in graph.aliases:
        if graph.pins[out] is None:
            detail = f"shares storage with %{graph.values[into].name}"
            graph.origins[out] = Origin("preset", detail)
    chosen = frozenset(
        node.index
        for node in graph.nodes
        if choices[node.index].splits.items or choices[node.index].dist.pending
    )
    nodes, values = len(graph.nodes), len(graph.values)
    sources: list[dict[str, int]] = [{} for _ in range(nodes)]
    origins: list[dict[str, int]] = [{} for _ in range(values)]
    return Solution(graph, choices, forms, sources, origins, chosen)
