"""What is predicted of a pipeline: what a step takes, how long processes wait, what they hold."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.base.units import human_bytes, human_seconds
from autopar.cost import Evaluation, evaluate_together, memory_timeline
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.collectives import is_collective
from autopar.ir.ops.shape.view import FREE
from autopar.ir.parts import programs_of
from autopar.ir.program import CALLS, Op, Program, callee_of
from autopar.partition.pipeline.tasks import BACKWARD, FORWARD
from autopar.pipeline.options import CompileOptions

PIPELINE = "pipeline"
"""The category of entries about a pipeline: of all of it, and then of each kind of rank."""


def predicted_stages(program: Program, options: CompileOptions) -> tuple[ReportEntry, ...]:
    """Returns what is to be said of a pipeline; nothing without one.

    Args:
        program: What ranks run, not yet mapped.
        options: What the user decided.
    """
    if not options.pipeline:
        return ()
    return tuple(_entries(program, options))


def _entries(program: Program, options: CompileOptions) -> Iterator[ReportEntry]:
    kinds = programs_of(program).kinds
    evaluations = evaluate_together(kinds, options.cluster)
    seconds = max(each.overlapped_seconds for each in evaluations)
    waited = [_waited(each, seconds) for each in evaluations]
    trains = any(op.phase == BACKWARD for op in program.main.ops)
    subject, what = (options.schedule, "step") if trains else (FORWARD, "call")
    yield ReportEntry(
        PIPELINE,
        subject,
        f"{human_seconds(seconds)} a {what}, of which processes wait {bubble(evaluations):.1%}",
    )
    for (part, coords), part_waited in zip(kinds, waited, strict=True):
        peak = human_bytes(memory_timeline(part, coords).peak_bytes)
        index = coords[options.pipeline]
        detail = f"waits {human_seconds(part_waited)}, holds at most {peak}"
        detail = f"{detail}; {_begins(part, options.runs.number(index), options)}"
        yield ReportEntry(PIPELINE, f"{options.pipeline}={index}", detail)


def _begins(part: Program, process: int | None, options: CompileOptions) -> str:
    """Returns with which ops the stages of a process begin, in words."""
    first: dict[int, Op] = {}
    for op in _flat(part):
        computes = options.process_of(op.stage) == process and bool(op.operands)
        computes = computes and op.kind not in FREE and not is_collective(op.kind)
        if computes and op.phase == "forward" and not op.microbatch:
            first.setdefault(op.stage, op)
    begins = (f"stage {stage} from {op.results[0]} on" for stage, op in sorted(first.items()))
    return ", ".join(begins)


def _flat(part: Program) -> Iterator[Op]:
    """Yields the ops of a program, those of what it calls in the place of calls."""
    for op in part.main.ops:
        if op.kind in CALLS and not op.microbatch:
            yield from part.functions[callee_of(op)].ops
        else:
            yield op


def bubble(evaluations: tuple[Evaluation, ...]) -> float:
    """Returns the share of a step during which processes have nothing to do.

    Args:
        evaluations: Of ranks that run together, one of each kind.
    """
    seconds = max(each.overlapped_seconds for each in evaluations)
    waited = sum(_waited(each, seconds) for each in evaluations)
    return waited / (seconds * len(evaluations)) if seconds else 0.0


def _waited(evaluation: Evaluation, seconds: float) -> float:
    clock = evaluation.clock
    return clock.waited_seconds + seconds - clock.computed_seconds
