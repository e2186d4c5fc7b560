"""The order of the passes, from a serial program to what the ranks run.

Passes never call one another. This is the one place that knows their order, but for those between a
completed program and a rank's, which plans are priced by too (`planning/lowering.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autopar.annotate import (
    apply_activations,
    marked_offload,
    offloaded,
    without_offload,
)
from autopar.base.collector import paused_collector
from autopar.base.errors import AnnotationError
from autopar.base.units import human_bytes
from autopar.completion import Complete, Legalize, explain
from autopar.completion.kept_whole import kept_whole
from autopar.completion.presets.strategy import AUTO
from autopar.completion.problem.problem import Problem
from autopar.completion.search.watch import Watch
from autopar.completion.submesh.where import stage_places
from autopar.completion.undivided import computed_at_once, undivided, undivided_stages
from autopar.cost.evaluation import evaluate
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.layout import Layout, Origin
from autopar.ir.memory.transfers import HOST
from autopar.ir.passes import Pass
from autopar.ir.program import Program
from autopar.ir.verify import verify_distribution, verify_structure
from autopar.mapping import Map, Strip, deploy
from autopar.partition import OffloadState, Recompute, Roll
from autopar.partition.pipeline.runs import Widths
from autopar.partition.pipeline.schedules import AUTO_SCHEDULE
from autopar.partition.recompute import DoesNotFit
from autopar.pipeline.annotated import annotated, uncut
from autopar.pipeline.decided import Compiled, lowering_of
from autopar.pipeline.device_memory import MEMORY, check_device_memory
from autopar.pipeline.fastest_chunks import fastest_chunks
from autopar.pipeline.fastest_schedule import (
    FastestSchedule,
    fastest_schedule,
    only_schedule,
)
from autopar.pipeline.fastest_widths import fastest_widths
from autopar.pipeline.for_device import for_device, other_figures
from autopar.pipeline.options import CompileOptions
from autopar.pipeline.planned import Planned, Planning
from autopar.pipeline.stages import predicted_stages
from autopar.planning.chunk import chunked
from autopar.planning.chunk.said import chunks_reported
from autopar.planning.cut_widths import proposed_widths
from autopar.planning.fit import Fitted, Fitter
from autopar.planning.least_held import refuse_impossible
from autopar.planning.lowering import LOWERING, Observer, Store
from autopar.planning.mesh_shape import Fastest, remark
from autopar.planning.planner import Planner, best_on_any_mesh

ORDER: tuple[type[Pass], ...] = (
    Complete,
    Legalize,
    *LOWERING,
    Recompute,
    OffloadState,
    Roll,
    Map,
    Strip,
)

PASSES = ("annotate", *(each.name for each in ORDER))
"""The names of the passes, in their order. What the user says comes first."""

INHERITED = Origin("inherited", "stored as for the first batch")


@paused_collector()
def compile_program(
    program: Program,
    options: CompileOptions,
    observe: Observer | None = None,
    report: Sequence[ReportEntry] = (),
    store: Store | None = None,
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
    watch = watch or Watch(options.time_limit, effort=options.effort)
    try:
        return _compiled(program, options, observe, report, store, watch)
    except DoesNotFit as miss:
        raise miss.at(options.memory_place) from miss


def _compiled(
    program: Program,
    options: CompileOptions,
    observe: Observer | None,
    report: Sequence[ReportEntry],
    store: Store | None,
    watch: Watch,
) -> Compiled:
    """Returns a compiled program; see `compile_program`."""
    program, options = with_exact_offload(for_device(program, options.device), options)
    if options.memory_bytes is not None:
        may_wait = bool(options.offload) or options.cluster.host_link is not None
        refuse_impossible(
            program, options.mesh.size, options.memory_bytes, may_wait_on_host=may_wait
        )
    found = fastest_mesh(program, options, watch, store) if options.any_shape else None
    if found is not None:
        options = replace(options, mesh=found.mesh, strategy=AUTO, any_shape=False)
        report = (*report, remark(found.shapes))
    observers: list[Observer] = [_verify] if options.verify else []
    if observe is not None:
        observers.append(observe)

    def seen(name: str, done: Program) -> None:
        for observer in observers:
            observer(name, done)

    def planning(each: CompileOptions) -> Planning:
        return _planning(program, each, store, watch)

    def planned(each: CompileOptions) -> Planned:
        # What is known of ops takes memory, and is forgotten; of reshards, the passes use it.
        return planning(each).planned(each.memory_bytes)

    if options.schedule == AUTO_SCHEDULE or options.any_widths:
        fastest, remarks = _fastest_pipeline(program, options, planned)
        options, report = fastest.options, (*report, *remarks)
        pinned, plan, lowering, chunks = fastest.planned
    elif options.chooses_chunks:
        cut = fastest_chunks(options, planning, watch)
        options, report = cut.options, (*report, *cut.remark())
        pinned, plan, lowering, chunks = cut.planning.planned(options.memory_bytes)
    else:
        known = None if found is None else found.plan
        pinned, plan, lowering, chunks = planning(options).planned(options.memory_bytes, known)
    seen("annotate", pinned)
    seen(Complete.name, plan.program)
    lowered = lowering(plan.program, seen)
    fitter = Fitter(
        lowered.ranks,
        options.cluster,
        options.offloaded,
        update=options.update,
        looped=lowered.looped,
    )
    fitted = fitter.within(options.memory_bytes)
    options = options.with_offload(fitted.offload)
    seen(Recompute.name, fitted.recomputed.program)
    seen(OffloadState.name, fitted.program)
    exceeded = check_device_memory(fitted.program, options.cluster)
    ranks = Roll()(fitted.program)
    seen(Roll.name, ranks)
    deployment = deploy(ranks, options.cluster, options.placement, seen)

    seconds = math.nan
    if plan.is_timed:
        seconds = evaluate(lowered.ranks, options.cluster).serialized_seconds
    said = (*plan.reported(seconds, fitted.added_seconds), *fitted.remarks)
    if plan.forecast is None and options.memory_bytes is not None:
        said = (*(each for each in said if each.subject != MEMORY), _held(fitted, options))
    said = (*said, *other_figures(options.cluster, options.device))
    staged = predicted_stages(fitted.program, options)
    at_once = computed_at_once(pinned) if options.microbatches > 1 else ()
    shared = undivided_stages(plan.program, options.pipeline, options.strategy)
    left = (*undivided(plan.program, options.strategy), *shared, *at_once)
    left = (*left, *kept_whole(plan.program))
    noted = explain(lowered.serial, lowering.planner)
    looped = chunks_reported(pinned, chunks, options.cluster)
    entries = (*report, *said, *looped, *staged, *exceeded, *left, *noted)
    return Compiled(lowered.serial, plan.program, options, ranks, deployment, entries)


def _fastest_pipeline(
    program: Program, options: CompileOptions, planned: Callable[[CompileOptions], Planned]
) -> tuple[FastestSchedule, list[ReportEntry]]:
    """Returns a program planned in the fastest order, with the fastest widths of stages.

    Returns:
        The plan, and what is to be said of the choices that were left open.
    """
    axis, remarks = options.pipeline, []

    def with_widths(widths: Widths) -> FastestSchedule:
        chosen = replace(options, widths=widths, any_widths=False)
        if chosen.schedule == AUTO_SCHEDULE:
            return fastest_schedule(chosen, planned)
        return only_schedule(chosen, planned(chosen))

    if options.any_widths:
        proposed = proposed_widths(uncut(program, options), axis, options.cluster)
        found = fastest_widths(options.mesh.axis_size(axis), proposed, with_widths)
        fastest = found.way
        remarks.append(found.remark())
    else:
        fastest = with_widths(options.widths)
    if options.schedule == AUTO_SCHEDULE:
        remarks.append(fastest.remark())
    return fastest, remarks


def _held(fitted: Fitted, options: CompileOptions) -> ReportEntry:
    """Returns what is to be said of a limit of memory where no search had others to compare."""
    assert options.memory_bytes is not None
    held = f"at most {human_bytes(fitted.peak_bytes)} of {human_bytes(options.memory_bytes)}"
    return ReportEntry("search", MEMORY, held)


def with_exact_offload(program: Program, options: CompileOptions) -> tuple[Program, CompileOptions]:
    """Returns a program and options of which these alone say what waits in the host's memory.

    Args:
        program: The serial program, with the user's marks.
        options: With patterns of what waits there.

    Raises:
        AnnotationError: If a pattern matches nothing that may, or nothing waits that the host
            could update.
    """
    if options.phases_apart:
        # What a parallel module stores is the user's, who has it on the device.
        return program, options.with_offload(())
    if options.offload is None and not marked_offload(program):
        _check_update(options, waits=False)
        return program, options
    labels = offloaded(program, options.offload or ())
    _check_update(options, waits=bool(labels))
    return without_offload(program), options.with_offload(labels)


def _check_update(options: CompileOptions, *, waits: bool) -> None:
    """Refuses updates by the host where nothing waits in its memory, and no limit decides."""
    if options.update == HOST and not waits and options.memory_bytes is None:
        raise AnnotationError(
            f"update={HOST!r}: the host updates what waits in its memory, and nothing does; say"
            " what waits there, as with offload='optimizer', or leave it out"
        )


def _planning(
    program: Program, options: CompileOptions, store: Store | None, watch: Watch
) -> Planning:
    """Returns a program that is to be planned."""
    pinned, chunks = annotated(program, options)
    stages = {}
    if options.pipeline:
        stages = stage_places(pinned, options.pipeline, options.index_of)
    problem = Problem.from_program(pinned, options.cluster, stages=stages)
    lowering = lowering_of(problem, options, store)
    return Planning(pinned, Planner(problem, lowering, options.strategy, watch), chunks)


def fastest_mesh(
    program: Program,
    options: CompileOptions,
    watch: Watch | None = None,
    store: Store | None = None,
) -> Fastest:
    """Returns the mesh for a number of processes on which the fastest plan is the fastest.

    Args:
        program: The serial program.
        options: With any mesh of as many processes, and no pins.
        watch: Limits and follows the search; without it, the options' limit holds.
        store: See `compile_program`.

    Raises:
        InvalidInputError: If no plan fits into memory on any mesh.
    """
    program = chunked(program, options.chunks or (), phases_apart=options.phases_apart)
    return best_on_any_mesh(
        apply_activations(program, options.activations),
        options.mesh.size,
        options.cluster,
        lambda problem: lowering_of(problem, options, store),
        options.memory_bytes,
        watch or Watch(options.time_limit, effort=options.effort),
    )


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
