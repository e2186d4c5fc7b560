"""The order of the passes, from a serial program to what the ranks run.

    frontend -> annotate -> completion -> legalize -> partition -> coalesce -> prefetch
    -> recompute -> mapping -> strip

Passes never call one another; this is the one place that knows their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.annotate import (
    apply_activations,
    apply_mesh,
    apply_op_pins,
    apply_pins,
    refuse_unexecuted,
)
from autopar.base.units import human_bytes
from autopar.completion import Complete, Legalize, explain
from autopar.completion.complete import Completed
from autopar.completion.prepare.split_fused_weights import taken_apart
from autopar.completion.presets.strategy import AUTO
from autopar.completion.search.watch import Watch
from autopar.completion.undivided import undivided
from autopar.cost import CommunicationModel, ReshardPlanner
from autopar.cost.evaluation import evaluate
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.deployment import Deployment
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.passes import Pass
from autopar.ir.program import STORED_ROLES, Program
from autopar.ir.verify import verify_distribution, verify_structure
from autopar.mapping import deploy
from autopar.partition import Coalesce, Partition, Prefetch, Recompute
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline.device_memory import check_device_memory
from autopar.pipeline.options import CompileOptions
from autopar.planning.mesh_shape import fastest_shape, remark
from autopar.planning.within_memory import Within

Observer = Callable[[str, Program], None]
"""Called with (pass name, program) after each pass."""

PASSES = (
    *("annotate", "complete", "legalize", "partition", "coalesce", "prefetch", "recompute"),
    *("map", "strip"),
)

INHERITED = Origin("inherited", "stored as for the first batch")


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes:
        serial: The completed program, with all attributes, that the ranks' programs realize.
        completed: The same before ops were replaced by bodies.
        options: What the user decided.
        partitioned: What a rank runs, before mapping and strip.
        deployment: The executable programs and which rank runs which.
        report: What the user should know: fallbacks, ignored features, decided conflicts.
    """

    serial: Program
    completed: Program
    options: CompileOptions
    partitioned: Program
    deployment: Deployment
    report: tuple[ReportEntry, ...] = ()

    def stored_layouts(self) -> dict[str, Layout]:
        """Returns how what is stored lies, by value name."""
        values = self.serial.main.values
        stored = [port.name for port in self.serial.signature.inputs if port.role in STORED_ROLES]
        return {name: dist for name in stored if (dist := values[name].dist) is not None}


def compile_program(
    program: Program,
    options: CompileOptions,
    observe: Observer | None = None,
    report: Sequence[ReportEntry] = (),
    store: Callable[[Program], Program] | None = None,
    watch: Watch | None = None,
) -> Compiled:
    """Compiles a serial program for a mesh, or for the fastest one of so many processes.

    Args:
        program: The program for one device.
        options: What the user decided.
        observe: Called after each pass.
        report: Entries of the frontend, to be put before those of the passes.
        store: Says of the completed program how inputs and outputs are to be stored, where that
            isn't how its ops want them.
        watch: Limits and follows the search; without it, the options' limit holds.

    Raises:
        AnnotationError: If pins contradict the program or one another, or ask for what isn't
            carried out yet.
        DoesNotFit: If it needs more memory than the limit.
        InvalidInputError: If a tensor is larger than a host of the cluster.
        VerificationError: If a pass left a program that violates the IR's rules: a defect.
    """
    watch = watch or Watch(options.seconds_limit, effort=options.effort)
    try:
        return _compiled(program, options, observe, report, store, watch)
    except DoesNotFit as miss:
        raise miss.at(options.memory_place) from miss


def _compiled(
    program: Program,
    options: CompileOptions,
    observe: Observer | None,
    report: Sequence[ReportEntry],
    store: Callable[[Program], Program] | None,
    watch: Watch,
) -> Compiled:
    """Returns a compiled program; see `compile_program`."""
    found: FastestMesh | None = None
    if options.any_shape:
        found = with_fastest_mesh(program, options, watch, store)
        options, report = found.options, (*report, found.remark)
    observers: list[Observer] = [_verify] if options.verify else []
    if observe is not None:
        observers.append(observe)

    def seen(name: str, done: Program) -> None:
        for observer in observers:
            observer(name, done)

    program = apply_mesh(program, options.mesh)
    if options.apart:
        program = taken_apart(program)
    if options.pins:
        program = apply_pins(program, options.mesh, options.pins)
    program = apply_op_pins(program, options.op_pins)
    program = apply_activations(program, options.activations)
    seen("annotate", program)
    refuse_unexecuted(program)
    planner = ReshardPlanner(CommunicationModel(options.cluster, options.mesh))
    complete = Complete(options.cluster, options.strategy, planner, watch)
    decided = found.decided if found else _decided(complete, program, options, planner, store)
    completed = decided.program
    seen(complete.name, completed)
    program, lowered = lower(completed, options, planner, seen, store)
    recompute = Recompute(options.cluster, options.memory_bytes)
    fitted = recompute.decide(lowered)
    partitioned = fitted.program
    seen(recompute.name, partitioned)
    exceeded = check_device_memory(partitioned, options.cluster)
    deployment = deploy(partitioned, options.cluster, options.placement, seen)

    def seconds() -> float:
        return evaluate(lowered, options.cluster).serialized_seconds

    said = (*decided.reported(seconds, fitted.added_seconds), *fitted.remarks)
    if decided.forecast is None and options.memory_bytes is not None:
        held = f"at most {human_bytes(fitted.peak_bytes)} of {human_bytes(options.memory_bytes)}"
        said = (*said, ReportEntry("search", "memory", held))
    left = undivided(completed, options.strategy)
    entries = (*report, *said, *exceeded, *left, *explain(program, planner))
    return Compiled(program, completed, options, partitioned, deployment, entries)


def _decided(
    complete: Complete,
    program: Program,
    options: CompileOptions,
    planner: ReshardPlanner,
    store: Callable[[Program], Program] | None = None,
) -> Completed:
    """Returns the completed program; where memory is limited and search is free, one that fits."""
    if options.strategy != AUTO or options.memory_bytes is None:
        return complete.decide(program)

    def lowered(completed: Program) -> Program:
        return lower(completed, options, planner, store=store)[1]

    within = Within(complete, program, lowered, options.cluster)
    return within.completed(options.memory_bytes)


def _unseen(name: str, program: Program) -> None:
    """Observes nothing: the program is one of several."""


def lower(
    completed: Program,
    options: CompileOptions,
    planner: ReshardPlanner,
    seen: Observer = _unseen,
    store: Callable[[Program], Program] | None = None,
) -> tuple[Program, Program]:
    """Returns a completed program legalized, and what a rank runs of it.

    What is to be recomputed for lack of memory isn't decided yet.

    Args:
        completed: The program.
        options: What the user decided.
        planner: Knows reshards of earlier passes.
        seen: Called after each pass.
        store: See `compile_program`.
    """
    legalize = Legalize(options.cluster, planner)
    coalesce = Coalesce(options.cluster, phases_apart=options.phases_apart)
    passes: tuple[Pass, ...] = (Partition(options.cluster, planner), coalesce, Prefetch())
    legal = legalize(completed)
    seen(legalize.name, legal)
    legal = partitioned = legal if store is None else store(legal)
    for each in passes:
        partitioned = each(partitioned)
        seen(each.name, partitioned)
    return legal, partitioned


def predicted(completed: Program, options: CompileOptions, planner: ReshardPlanner) -> Program:
    """Returns what a rank would run of a completed program, to be priced.

    Raises:
        AutoparError: If it can't be made to fit into memory.
    """
    _, partitioned = lower(completed, options, planner)
    return Recompute(options.cluster, options.memory_bytes)(partitioned)


@dataclass(frozen=True)
class FastestMesh:
    """The mesh of the fastest plan.

    Attributes:
        options: With the mesh.
        remark: What is to be said of all shapes that were tried.
        decided: The program completed on the mesh.
    """

    options: CompileOptions
    remark: ReportEntry
    decided: Completed


def with_fastest_mesh(
    program: Program,
    options: CompileOptions,
    watch: Watch | None = None,
    store: Callable[[Program], Program] | None = None,
) -> FastestMesh:
    """Returns the mesh for a number of processes on which the fastest plan is the fastest.

    Args:
        program: The serial program.
        options: With any mesh of as many processes, and no pins.
        watch: Limits and follows the search; without it, the options' limit holds.
        store: See `compile_program`.

    Raises:
        InvalidInputError: If no plan fits into memory on any mesh.
    """
    program = apply_activations(program, options.activations)
    watch = watch or Watch(options.seconds_limit, effort=options.effort)
    complete = Complete(options.cluster, AUTO, watch=watch)

    def chosen(mesh: ProcessMesh) -> CompileOptions:
        return replace(options, mesh=mesh, strategy=AUTO, any_shape=False)

    def within_memory(complete: Complete, on_mesh: Program) -> tuple[float, Completed]:
        assert on_mesh.mesh is not None
        on = chosen(on_mesh.mesh)
        planner = complete.begun[0].graph.space.planner
        decided = _decided(complete, on_mesh, on, planner, store)
        ran = predicted(decided.program, on, planner)
        return evaluate(ran, options.cluster).serialized_seconds, decided

    decide = None if options.memory_bytes is None else within_memory
    found = fastest_shape(program, options.mesh.size, complete, decide)
    return FastestMesh(chosen(found.shapes[0].mesh), remark(found.shapes), found.completed)


def inherit(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """Returns a serial program in which values lie as another one over the same storage has them.

    Args:
        program: The program, with the user's pins: the other one may have placed those within a
            dimension.
        layouts: Of inputs, by name.
    """
    values = dict(program.main.values)
    for name, layout in layouts.items():
        if name in values:
            values[name] = replace(values[name], dist=layout, origin=INHERITED)
    return program.with_main(replace(program.main, values=values))


def _verify(name: str, program: Program) -> None:
    verify_structure(program)
    if name in ("complete", "legalize"):
        verify_distribution(program)
