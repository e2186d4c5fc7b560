"""Variations: plans like one that is known, but for one op or value.

What would it cost to compute an op otherwise? To search the whole program anew for each way takes
long, and most of it stays as it is. So one search is made of the program, every variation pins one
op or value of it, and the plan is improved from where it is: many ops at a time change with it, as
far as that makes it faster. In programs of few ops the best presets are further starts. What is
found can be compiled. Programs of a handful of ops are searched anew as well, with what is known of
costs; of larger ones a search from scratch, which proves how far from best it is, may find better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autopar.completion.complete import Complete, with_main
from autopar.completion.prepare.common_subexpressions import share_moves
from autopar.completion.prepare.renew_views import renew_views
from autopar.completion.presets.place import place_pins
from autopar.completion.problem.graph import decision
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.space import Form
from autopar.completion.propagate.solve import pin_aliases
from autopar.completion.search.fastest import STARTS, Search
from autopar.completion.search.plans import FEW_OPS
from autopar.completion.write import write_solution
from autopar.ir.program import Op, Program, Value

Pinned = Value | Op
"""A value with a layout, or an op with a choice."""


class Variations:
    """The variations of a plan.

    Args:
        complete: Searches.
        completed: The program as it was completed.
        free: The same with the user's pins only, and none of what is varied.
        is_moved: Whether the plan was made for other hardware, so that another one may be the
            better start.

    Raises:
        AnnotationError: If its ops run on slices of the mesh.
    """

    def __init__(
        self, complete: Complete, completed: Program, free: Program, *, is_moved: bool = False
    ) -> None:
        self.search: Search = complete.searches_of(free)[0]
        self.main = share_moves(renew_views(free.main))
        self.program = free.with_main(self.main)
        ops = {op.results: op for op in completed.main.ops}
        nodes = self.search.graph.nodes
        plan = [decision(replace(node, op=ops[node.op.results])) for node in nodes]
        self.starts: list[Sequence[Choice]] = [plan]
        if is_moved:
            self.starts.append(self.search.find().solution.choices)
        if len(nodes) <= FEW_OPS:
            self.starts += [each.solution.choices for each in self.search.presets(0.0)[:STARTS]]

    def with_pin(self, pinned: Pinned) -> Program:
        """Returns the program completed with a value or an op as a user would pin it.

        Args:
            pinned: With its layout, or its choice.

        Raises:
            AnnotationError: If that contradicts another pin, or the op can't be computed so.
        """
        graph = self.search.graph
        if isinstance(pinned, Value):
            assert pinned.dist is not None
            form = graph.space.form(pinned.dist)
            return self._completed({graph.position[pinned.name]: form}, {})
        (node,) = (node for node in graph.nodes if node.op.results == pinned.results)
        return self._completed({}, {node.index: decision(replace(node, op=pinned))})

    def _completed(self, pins: Mapping[int, Form], decided: Mapping[int, Choice]) -> Program:
        graph = self.search.graph.repinned(pins, decided)
        if pins:
            place_pins(graph)
            pin_aliases(graph)
        found = self.search.varied(graph).near(self.starts)
        main = write_solution(self.main, found.solution)
        return with_main(self.program, main, graph.space.mesh)
