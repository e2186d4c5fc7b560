"""Complete: the pass that gives every value and op a layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from autopar.completion.apart import splits_parts, ways_apart
from autopar.completion.call import CallTable
from autopar.completion.graph import Graph
from autopar.completion.lifetimes import renew_views
from autopar.completion.place import place_pins
from autopar.completion.presets import pin_strategy
from autopar.completion.refine import GAIN
from autopar.completion.share import share_moves
from autopar.completion.solve import Solution, solve
from autopar.completion.space import Space
from autopar.completion.write import write_replicated, write_solution
from autopar.completion.zero import keep_states
from autopar.cost import Cluster, ReshardPlanner
from autopar.ir.errors import AnnotationError
from autopar.ir.program import Program


@dataclass(frozen=True)
class Complete:
    """Completes a serial program from its pins.

    Attributes:
        cluster: The hardware whose costs decide.
        strategy: Presets that pin before: None for no presets, "" for the default of the mesh,
            or text as `data:0,tensor:1`.
        planner: Knows reshards of earlier passes; None if there are none.
        settled: Whether pins of what is stored are final, not to be placed between the parts of a
            fused dimension.
    """

    name: ClassVar[str] = "complete"

    cluster: Cluster
    strategy: str | None = None
    planner: ReshardPlanner | None = field(default=None, repr=False, compare=False)
    settled: bool = False

    def __call__(self, program: Program) -> Program:
        """Returns the program with a layout and an origin for every value and op.

        Functions other than `main` are computed by every process alike.

        Raises:
            AnnotationError: If the program has no mesh, or pins contradict one another.
        """
        if program.mesh is None:
            raise AnnotationError("the program has no mesh; annotate it with one first")
        space = Space(program.mesh, self.cluster, self.planner)
        calls = CallTable(space)
        done, solution = self._solved(program, calls)
        if space.axes:
            for apart in ways_apart(program):
                other, found = self._solved(apart, calls)
                cheaper = found.seconds < solution.seconds * (1 - GAIN)
                if cheaper and splits_parts(other, found):
                    done, solution = other, found
        functions = {
            name: write_replicated(function, space.mesh)
            for name, function in program.functions.items()
            if name != "main"
        }
        main = write_solution(done.main, solution)
        ordered = {name: functions.get(name, main) for name in program.functions}
        return replace(done, functions=ordered)

    def _solved(self, program: Program, calls: CallTable) -> tuple[Program, Solution]:
        """Returns a program as it was completed, and what was decided about it."""
        main = share_moves(renew_views(program.main))
        graph = Graph(calls.space, calls, main.ops, main.values, main.outputs, main.aliases)
        if not self.settled:
            place_pins(graph)
        if self.strategy is not None:
            pin_strategy(graph, self.strategy)
        keep_states(graph)
        return program.with_main(main), solve(graph)
