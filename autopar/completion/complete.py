"""Complete: the pass that gives every value and op a layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from autopar.base.collector import paused_collector
from autopar.base.errors import AnnotationError
from autopar.completion.prepare.common_subexpressions import share_moves
from autopar.completion.prepare.renew_views import renew_views
from autopar.completion.prepare.split_fused_weights import splits_parts, ways_apart
from autopar.completion.presets.batch import batch_end, batch_inputs, single_inputs
from autopar.completion.presets.named import Unfit, pin_strategy, without_batch
from autopar.completion.presets.place import place_pins
from autopar.completion.presets.strategy import AUTO
from autopar.completion.presets.zero import keep_states
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import CallTable
from autopar.completion.problem.space import Space
from autopar.completion.propagate.local_search import GAIN
from autopar.completion.propagate.solve import Solution, pin_aliases, solve
from autopar.completion.search.auto import Decided, decide
from autopar.completion.search.fastest import Search
from autopar.completion.search.forecast import Forecast, predicted_time
from autopar.completion.search.incumbents import Incumbents
from autopar.completion.search.network.memory_price import FREE, HeldPrice
from autopar.completion.search.watch import Watch
from autopar.completion.submesh.slices import complete_slices
from autopar.completion.submesh.where import find_places
from autopar.completion.write import write_replicated, write_solution
from autopar.cost import Cluster, ReshardPlanner
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Program

NO_BATCH = (
    "no input has a first dimension that is kept apart up to an output or a loss; pin what to split"
)

SINGLE = (
    "a first dimension of 1 isn't split; if it is a batch, give an example with as many as there"
    " are to be"
)


@dataclass(frozen=True)
class Completed:
    """A completed program.

    Attributes:
        program: The program.
        remarks: How it was decided, for the report.
        seconds: Predicted serialized seconds of a step; of slices of a mesh they aren't known.
        forecast: What search predicts of it; None where nothing was searched.
    """

    program: Program
    remarks: tuple[ReportEntry, ...] = ()
    seconds: float = math.nan
    forecast: Forecast | None = None

    def reported(
        self, seconds: Callable[[], float], added_seconds: float
    ) -> tuple[ReportEntry, ...]:
        """Returns the remarks, with the forecast; without search, with the time alone.

        Args:
            seconds: Predicts the serialized seconds of what ranks run; not called for slices.
            added_seconds: What recomputation and transfers to the host's memory add.
        """
        if math.isnan(self.seconds):
            return self.remarks
        if self.forecast is None:
            total = predicted_time(seconds() + added_seconds, added_seconds)
            return (ReportEntry("search", "time", total), *self.remarks)
        return (self.forecast.remark(seconds(), added_seconds), *self.remarks)


@dataclass(frozen=True)
class Complete:
    """Completes a serial program from its pins.

    Attributes:
        cluster: The hardware whose costs decide.
        strategy: Presets that pin before, as `data:0,tensor:1`; None for no presets; or `auto`,
            to search for what is fastest.
        planner: Knows reshards of earlier passes; None if there are none.
        watch: Limits and follows a search.
        begun: What `searches_of` returned for the program, to go on with; none to search anew.
        calls: What is known of ops on the mesh from a program like this one; None if nothing is.
    """

    name: ClassVar[str] = "complete"

    cluster: Cluster
    strategy: str | None = None
    planner: ReshardPlanner | None = field(default=None, repr=False, compare=False)
    watch: Watch = field(default_factory=Watch, repr=False, compare=False)
    begun: tuple[Search, ...] = field(default=(), repr=False, compare=False)
    calls: CallTable | None = field(default=None, repr=False, compare=False)

    def __call__(self, program: Program) -> Program:
        """Returns the program with a layout and an origin for every value and op.

        Functions other than `main` are computed by every process alike.

        Raises:
            AnnotationError: If the program has no mesh, or pins contradict one another.
        """
        return self.decide(program).program

    def decide(self, program: Program) -> Completed:
        """Returns the completed program, and what a user should know of how it was decided.

        Raises:
            AnnotationError: If the program has no mesh, or pins contradict one another.
        """
        return self.at_prices(program)(FREE)

    @paused_collector()
    def at_prices(self, program: Program) -> Callable[[HeldPrice], Completed]:
        """Returns what completes a program, given the price of the bytes that a rank holds.

        Only search heeds it, and keeps what it learns between prices.

        Raises:
            AnnotationError: If the program has no mesh.
        """
        if program.mesh is None:
            raise AnnotationError("the program has no mesh; annotate it with one first")
        if find_places(program.main).are_slices:
            space = Space(program.mesh, self.cluster, self.planner)
            return paused_collector()(lambda _: self._on_slices(program, space))
        calls = self._calls(program.mesh)
        space = calls.space
        first, *others = [
            self._decider(each, calls, number) for number, each in enumerate(_ways(program, space))
        ]

        @paused_collector()
        def completed(price: HeldPrice) -> Completed:
            done, decided = first(price)
            for decide_other in others:
                other, found = decide_other(price)
                cheaper = found.solution.seconds < decided.solution.seconds * (1 - GAIN)
                if cheaper and splits_parts(other, found.solution):
                    done, decided = other, found
            return _written(done, decided, self._ignored(decided.solution.graph))

        return completed

    def _ignored(self, graph: Graph) -> tuple[ReportEntry, ...]:
        """Returns a remark if the strategy speaks of a batch that there isn't."""
        if self.strategy in (None, AUTO):
            return ()
        presets = without_batch(graph, self.strategy)
        if not presets:
            return ()
        subject = f"batch of {', '.join(map(str, presets))}"
        if found := batch_inputs(graph):
            names = ", ".join(graph.values[value].name for value in found)
            return (ReportEntry("ignored", subject, f"{names}: pinned otherwise"),)
        end, single = batch_end(graph), ", ".join(single_inputs(graph))
        if end is None:
            detail = f"{single}: {SINGLE}" if single else NO_BATCH
            return (ReportEntry("ignored", subject, detail),)
        detail = f"{NO_BATCH} ({end.op.kind} is where the last one ends)"
        if single:
            detail += f"; {single}: {SINGLE}"
        return (ReportEntry("ignored", subject, detail, end.op.loc),)

    def searches_of(self, program: Program) -> tuple[Search, ...]:
        """Returns the searches of a program that has its mesh, also with its weights taken apart.

        Raises:
            AnnotationError: If the program has no mesh, or its ops run on slices of it.
        """
        if program.mesh is None or find_places(program.main).are_slices:
            raise AnnotationError("only a program on a single mesh is searched")
        calls = self._calls(program.mesh)
        ways = [share_moves(renew_views(way.main)) for way in _ways(program, calls.space)]
        return tuple(self._search(main, calls) for main in ways)

    def _calls(self, mesh: ProcessMesh) -> CallTable:
        if self.begun:
            return self.begun[0].graph.calls
        return self.calls or CallTable(Space(mesh, self.cluster, self.planner))

    def _on_slices(self, program: Program, space: Space) -> Completed:
        """Returns a program completed whose ops run on different slices of the mesh."""
        main = share_moves(renew_views(program.main))
        remarks: list[ReportEntry] = []
        unfit: list[tuple[ProcessMesh, Unfit]] = []

        def completed(function: Function, mesh: ProcessMesh) -> Function:
            calls = CallTable(Space(mesh, self.cluster, space.planner))
            unfit.append((mesh, {}))
            decided = self._decided(function, calls, unfit[-1][1])
            if decided.forecast is not None:
                remarks.append(decided.forecast.remark())
            return write_solution(function, decided.solution)

        done = complete_slices(main, find_places(main), space.mesh, completed)
        _check_fit(unfit)
        return Completed(with_main(program, done, space.mesh), tuple(remarks))

    def _decider(
        self, program: Program, calls: CallTable, number: int = 0
    ) -> Callable[[HeldPrice], tuple[Program, Decided]]:
        """Returns a function from a price to a program as it is completed, and what is decided.

        Args:
            program: The program, or a way to take its weights apart.
            calls: Of its mesh.
            number: Of the search, if it was begun.
        """
        main = share_moves(renew_views(program.main))
        done = program.with_main(main)
        if self.strategy != AUTO:
            return lambda _: (done, self._decided(main, calls))
        search = self.begun[number] if self.begun else self._search(main, calls)
        return lambda price: (done, decide(search, price))

    def _solved(self, program: Program, calls: CallTable) -> tuple[Program, Decided]:
        """Returns a program as it was completed, and what was decided about it."""
        return self._decider(program, calls)(FREE)

    def _decided(self, main: Function, calls: CallTable, unfit: Unfit | None = None) -> Decided:
        """Returns what is decided about a function on one mesh; see `pin_strategy` on `unfit`."""
        if self.strategy != AUTO:
            return Decided(_propagated(self._graph(main, calls), self.strategy, unfit))
        return decide(self._search(main, calls))

    def _search(self, main: Function, calls: CallTable) -> Search:
        pinned = self._graph(main, calls)
        graph = pinned.anew()
        pin_aliases(graph)

        def preset(strategy: str) -> Solution:
            return _propagated(pinned.anew(), strategy)

        watch = self.watch.over(len(graph.nodes))
        presets = Incumbents(calls.space.mesh, preset, graph, watch)
        return Search(graph, watch, presets)

    def _graph(self, main: Function, calls: CallTable) -> Graph:
        graph = Graph(calls.space, calls, main.ops, main.values, main.outputs, main.aliases)
        place_pins(graph)
        return graph


def _propagated(graph: Graph, strategy: str | None, unfit: Unfit | None = None) -> Solution:
    """Returns what follows from the pins of the user, which a graph has, and of a strategy."""
    if strategy is not None:
        pin_strategy(graph, strategy, unfit)
    keep_states(graph)
    return solve(graph)


def _ways(program: Program, space: Space) -> tuple[Program, ...]:
    """Returns the program, and the ways to take its fused weights apart."""
    return (program, *(ways_apart(program) if space.axes else ()))


def _check_fit(unfit: Sequence[tuple[ProcessMesh, Unfit]]) -> None:
    """Refuses presets that find nothing to pin on any slice that has their axis."""
    for item, error in ((item, error) for _, each in unfit for item, error in each.items()):
        if all(item in each for mesh, each in unfit if item.axis in mesh.dim_names):
            raise error


def _written(program: Program, decided: Decided, remarks: tuple[ReportEntry, ...]) -> Completed:
    main = write_solution(program.main, decided.solution)
    assert program.mesh is not None
    written = with_main(program, main, program.mesh)
    seconds = decided.solution.seconds
    return Completed(written, remarks, seconds, decided.forecast)


def with_main(program: Program, main: Function, mesh: ProcessMesh) -> Program:
    """Returns a program with a completed main; other functions are computed by all alike.

    Args:
        program: The program.
        main: Its main function, completed.
        mesh: The mesh of the program.
    """
    functions = {
        name: main if name == "main" else write_replicated(function, mesh)
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)
