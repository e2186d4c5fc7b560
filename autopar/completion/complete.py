"""Complete: from a problem to a plan, and the pass that does so for a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from autopar.base.collector import paused_collector
from autopar.completion.plan import Plan
from autopar.completion.prepare.split_fused_weights import splits_parts
from autopar.completion.presets.batch import batch_end, batch_inputs, single_inputs
from autopar.completion.presets.named import Unfit, pin_strategy, without_batch
from autopar.completion.presets.strategy import AUTO
from autopar.completion.presets.zero import keep_states
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.problem import Problem, Way, graph_of, prepared
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on
from autopar.completion.propagate.local_search import GAIN
from autopar.completion.propagate.solve import Solution, pin_aliases, solve
from autopar.completion.search.auto import Decided, decide
from autopar.completion.search.fastest import Search
from autopar.completion.search.incumbents import Incumbents
from autopar.completion.search.network.memory_price import FREE, MemoryPrice
from autopar.completion.search.watch import Watch
from autopar.completion.submesh.slices import complete_slices
from autopar.completion.submesh.where import find_places
from autopar.completion.write import write_replicated, write_solution
from autopar.cost import Cluster
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
class Complete:
    """Completes a serial program from its pins.

    Attributes:
        cluster: The hardware whose costs decide.
        strategy: Presets that pin before, as `data:0,tensor:1`; None for no presets; or `auto`,
            to search for what is fastest.
        watch: Limits and follows a search.
    """

    name: ClassVar[str] = "complete"

    cluster: Cluster
    strategy: str | None = None
    watch: Watch = field(default_factory=Watch, repr=False, compare=False)

    def __call__(self, program: Program) -> Program:
        """Returns the program with a layout and an origin for every value and op.

        Functions other than `main` are computed by every process alike.

        Raises:
            AnnotationError: If the program has no mesh, or pins contradict one another.
        """
        return self.plan(program).program

    def plan(self, program: Program) -> Plan:
        """Returns the completed program, and what a user should know of how it was decided.

        Raises:
            AnnotationError: If the program has no mesh, or pins contradict one another.
        """
        return planned(Problem.from_program(program, self.cluster), self.strategy, self.watch)


def planned(problem: Problem, strategy: str | None, watch: Watch) -> Plan:
    """Returns the plan of a problem by a strategy; see `Complete`."""
    if strategy == AUTO:
        return Searched(problem, watch).best()
    return propagated(problem, strategy)


@paused_collector()
def propagated(problem: Problem, strategy: str | None) -> Plan:
    """Returns the plan that follows from the pins of a problem and of a strategy.

    Args:
        problem: The problem.
        strategy: Presets, as `data:0,tensor:1`; None for none.

    Raises:
        AnnotationError: If the strategy doesn't fit the mesh or the program, or pins contradict one
            another.
    """
    if problem.places.are_slices:
        return _on_slices(problem, lambda graph, unfit: Decided(_solved(graph, strategy, unfit)))
    solved = ((way, Decided(_solved(way.graph.anew(), strategy))) for way in problem.ways)
    way, decided = _cheapest(solved)
    return _written(way, decided, _ignored(decided.solution.graph, strategy))


class Searched:
    """The plans that search finds for a problem: it keeps what it learns from one to the next.

    Args:
        problem: The problem.
        watch: Limits and follows the search.
    """

    @paused_collector()
    def __init__(self, problem: Problem, watch: Watch) -> None:
        self.problem, self.watch = problem, watch
        ways = () if problem.places.are_slices else problem.ways
        self.searches = tuple(search_of(way.graph, watch) for way in ways)
        """A search per way to complete the program; none if its ops run on slices of the mesh."""

    @paused_collector()
    def best(self, price: MemoryPrice = FREE) -> Plan:
        """Returns the fastest plan that is found.

        Args:
            price: Of the bytes that a rank holds; it is part of what is minimized. On slices of the
                mesh it isn't heeded.
        """
        if not self.searches:
            return _on_slices(self.problem, lambda graph, _: decide(search_of(graph, self.watch)))
        pairs = zip(self.problem.ways, self.searches, strict=True)
        return _written(*_cheapest((way, decide(search, price)) for way, search in pairs))


def search_of(pinned: Graph, watch: Watch) -> Search:
    """Returns a search for the plans of a graph.

    Args:
        pinned: With the user's pins.
        watch: Limits and follows it.
    """
    graph = pinned.anew()
    pin_aliases(graph)
    watch = watch.over(len(graph.nodes))
    mesh = graph.space.mesh
    presets = Incumbents(mesh, lambda strategy: _solved(pinned.anew(), strategy), graph, watch)
    return Search(graph, watch, presets)


def _solved(graph: Graph, strategy: str | None, unfit: Unfit | None = None) -> Solution:
    """Returns what follows from the pins of the user, which a graph has, and of a strategy.

    Args:
        graph: With the user's pins; it gets more.
        strategy: The presets.
        unfit: See `pin_strategy`.
    """
    if strategy is not None:
        pin_strategy(graph, strategy, unfit)
    keep_states(graph)
    return solve(graph)


def _cheapest(solved: Iterable[tuple[Way, Decided]]) -> tuple[Way, Decided]:
    """Returns the first; or one with weights taken apart that is cheaper, and splits them."""
    (way, decided), *others = solved
    for other, plan in others:
        cheaper = plan.solution.seconds < decided.solution.seconds * (1 - GAIN)
        if cheaper and splits_parts(other.program, plan.solution):
            way, decided = other, plan
    return way, decided


def _on_slices(problem: Problem, decided: Callable[[Graph, Unfit], Decided]) -> Plan:
    """Returns the plan of a program whose ops run on different slices of the mesh.

    Args:
        problem: The problem.
        decided: Decides about the ops of one slice, and notes presets that find nothing there.
    """
    remarks: list[ReportEntry] = []
    unfit: list[tuple[ProcessMesh, Unfit]] = []

    def completed(function: Function, mesh: ProcessMesh, where: str) -> Function:
        calls = calls_on(Space(mesh, problem.cluster, problem.planner.on(mesh)))
        unfit.append((mesh, {}))
        made = decided(graph_of(function, calls), unfit[-1][1])
        if made.forecast is not None:
            remark = made.forecast.remark()
            detail = f"on {where}: {remark.detail}" if where else remark.detail
            remarks.append(replace(remark, detail=detail))
        return write_solution(function, made.solution)

    main = prepared(problem.program.main)
    done = complete_slices(main, find_places(main, problem.stages), problem.mesh, completed)
    _check_fit(unfit)
    return Plan(with_main(problem.program, done), tuple(remarks))


def _check_fit(unfit: Sequence[tuple[ProcessMesh, Unfit]]) -> None:
    """Refuses presets that find nothing to pin on any slice that has their axis."""
    for item, error in ((item, error) for _, each in unfit for item, error in each.items()):
        if all(item in each for mesh, each in unfit if item.axis in mesh.dim_names):
            raise error


def _written(way: Way, decided: Decided, remarks: tuple[ReportEntry, ...] = ()) -> Plan:
    main = write_solution(way.program.main, decided.solution)
    program = with_main(way.program, main)
    return Plan(program, remarks, decided.solution.seconds, decided.forecast)


def with_main(program: Program, main: Function) -> Program:
    """Returns a program with a completed main; other functions are computed by all alike.

    Args:
        program: The program, on its mesh.
        main: Its main function, completed.
    """
    assert program.mesh is not None
    functions = {
        name: main if name == "main" else write_replicated(function, program.mesh)
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def _ignored(graph: Graph, strategy: str | None) -> tuple[ReportEntry, ...]:
    """Returns a remark if a strategy speaks of a batch that there isn't."""
    presets = without_batch(graph, strategy) if strategy is not None else ()
    if not presets:
        return ()
    subject = f"batch of {', '.join(map(str, presets))}"
    if inputs := batch_inputs(graph):
        names = ", ".join(graph.values[value].name for value in inputs)
        return (ReportEntry("ignored", subject, f"{names}: pinned otherwise"),)
    end, single = batch_end(graph), ", ".join(single_inputs(graph))
    if end is None:
        detail = f"{single}: {SINGLE}" if single else NO_BATCH
        return (ReportEntry("ignored", subject, detail),)
    detail = f"{NO_BATCH} ({end.op.kind} is where the last one ends)"
    if single:
        detail += f"; {single}: {SINGLE}"
    return (ReportEntry("ignored", subject, detail, end.op.loc),)
