"""What is predicted of a pipeline: what a step takes, how long processes wait, what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autopar.base.units import human_bytes, human_seconds
from autopar.cost import Evaluation, evaluate_together, memory_timeline
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.collectives import is_collective
from autopar.ir.ops.shape.view import FREE
from autopar.ir.parts import programs_of
from autopar.ir.program import (
    CALLS,
    STORED_ROLES,
    Function,
    Op,
    Program,
    Value,
    callee_of,
)
from autopar.partition.pipeline.tasks import BACKWARD, FORWARD
from autopar.pipeline.options import CompileOptions

PIPELINE = "pipeline"
"""The category of entries about a pipeline: of all of it, and then of each kind of rank."""

Sources = frozenset[str]
"""What a value is made of: some of `_BATCH`, `_STORED` and `_SENT`; constants of nothing."""

_BATCH, _STORED, _SENT = "batch", "stored", "sent"


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
    """Returns with which ops the stages of a process begin, in words.

    What is made of the batch alone, as how many targets count, or of parameters alone is anywhere
    before it is read, and says nothing of where the model is cut.
    """
    first: dict[int, Op] = {}
    for every in (False, True):
        for op, sources in _first_microbatch(part.main, part, {}):
            computes = options.process_of(op.stage) == process and bool(op.operands)
            computes = computes and op.kind not in FREE and not is_collective(op.kind)
            if computes and op.phase == FORWARD and (every or _carried(sources)):
                first.setdefault(op.stage, op)
    begins = (f"stage {stage} from {op.results[0]} on" for stage, op in sorted(first.items()))
    idle = f"no stage is here: mark more of them, or make {options.pipeline} smaller"
    return ", ".join(begins) or idle


def _carried(sources: Sources) -> bool:
    """Returns whether something is made of what other stages send, or of batch and parameters."""
    return _SENT in sources or len(sources) > 1


def _first_microbatch(
    function: Function, part: Program, known: Mapping[str, Sources]
) -> Iterator[tuple[Op, Sources]]:
    """Yields the ops of the first microbatch, those of what it calls in the place of calls.

    With each comes what it is made of.

    Args:
        function: A function of the program of a rank.
        part: The program.
        known: What the inputs of the function are made of, where they aren't those of the program.
    """
    made = {**{name: _given(function.values[name]) for name in function.inputs}, **known}
    for op in function.ops:
        sources = frozenset[str]().union(*(made.get(name, ()) for name in op.operands))
        if is_collective(op.kind) and not sources:
            sources = frozenset({_SENT})
        made.update(dict.fromkeys(op.results, sources))
        if op.microbatch:
            continue
        if op.kind not in CALLS:
            yield op, sources
            continue
        callee = part.functions[callee_of(op)]
        pairs = zip(callee.inputs, op.operands, strict=False)
        inputs = {name: made[operand] for name, operand in pairs if operand in made}
        yield from _first_microbatch(callee, part, inputs)


def _given(value: Value) -> Sources:
    return frozenset({_STORED if value.role in STORED_ROLES else _BATCH})


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
