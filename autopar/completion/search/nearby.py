"""Nearby: plans like one that is known, but for one op or value.

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

from autopar.completion.complete import search_of, with_main
from autopar.completion.plan import Plan
from autopar.completion.presets.place import place_pins
from autopar.completion.problem.graph import decision
from autopar.completion.problem.op_strategies import Choice
from autopar.completion.problem.problem import Pinned, Problem
from autopar.completion.problem.space import Form
from autopar.completion.propagate.solve import pin_aliases
from autopar.completion.search.learned import FEW_OPS
from autopar.completion.search.run import STARTS
from autopar.completion.search.watch import Watch
from autopar.completion.write import write_solution
from autopar.ir.program import Program, Value


class Nearby:
    """The plans near one that is known.

    Args:
        problem: With the user's pins only, and none of what is varied.
        completed: The program as the known plan has it.
        watch: Limits and follows the search.
        is_moved: Whether the plan was made for other hardware, so that another one may be the
            better start.
    """

    def __init__(
        self, problem: Problem, completed: Program, watch: Watch, *, is_moved: bool = False
    ) -> None:
        self.way = problem.ways[0]
        self.search = search_of(self.way.graph, watch)
        ops = {op.results: op for op in completed.main.ops}
        nodes = self.search.graph.nodes
        plan = [decision(replace(node, op=ops[node.op.results])) for node in nodes]
        self.starts: list[Sequence[Choice]] = [plan]
        if is_moved:
            self.starts.append(self.search.find().solution.choices)
        if len(nodes) <= FEW_OPS:
            self.starts += [each.solution.choices for each in self.search.presets(0.0)[:STARTS]]

    def with_pin(self, pinned: Pinned) -> Plan:
        """Returns the best plan found with a value or an op as a user would pin it.

        Args:
            pinned: With its layout, or its choice.

        Raises:
            AnnotationError: If that contradicts another pin, or the op can't be computed so.
        """
        graph = self.search.graph
        if isinstance(pinned, Value):
            assert pinned.dist is not None
            form = graph.space.form(pinned.dist)
            return self._plan({graph.position[pinned.name]: form}, {})
        (node,) = (node for node in graph.nodes if node.op.results == pinned.results)
        return self._plan({}, {node.index: decision(replace(node, op=pinned))})

    def _plan(self, pins: Mapping[int, Form], decided: Mapping[int, Choice]) -> Plan:
        graph = self.search.graph.repinned(pins, decided)
        if pins:
            place_pins(graph)
            pin_aliases(graph)
        nearest = self.search.near(graph, self.starts)
        main = write_solution(self.way.program.main, nearest.solution)
        return Plan(with_main(self.way.program, main), seconds=nearest.solution.seconds)
