"""Plan files: what was decided about a program, as a readable file from which it is compiled again.

    autopar plan build/ -o plan.yaml
    autopar compile model.onnx --mesh 2x4 --plan plan.yaml

A plan pins what is stored and the ops at which something was decided. That this is enough is not
assumed: the program is completed from the plan, and whatever comes out differently is pinned too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from autopar.analysis.explainable import Explainable, decided_of
from autopar.annotate.plan_text import PinnedActivations, PinnedOp, PinnedValue, plan_text
from autopar.base.arguments import PATH, expect
from autopar.base.errors import Loc
from autopar.base.file import check_file, write_file
from autopar.base.units import counted
from autopar.completion.complete import propagated
from autopar.completion.decisions import decisive_ops
from autopar.completion.problem.problem import Problem
from autopar.completion.propagate.solve import SHARES_STORAGE
from autopar.completion.submesh.slices import without_brought
from autopar.ir.activations import NUMBERED, choice_of
from autopar.ir.fixed import Fixed
from autopar.ir.layout import Origin
from autopar.ir.ops.loops import microbatches
from autopar.ir.program import STORED_ROLES, Function, Op, Program, Value, fixed_of
from autopar.pipeline.options import CompileOptions

ROUNDS = 4
"""How often a plan is completed to find what it lacks; then it pins everything."""

GIVEN = ("input", "parameter", "buffer", "state")
"""Roles of the inputs that a plan always pins."""

PINNED = ("annotated", "inherited", "preset")

_ABSOLUTE = re.compile(r"(?:(?<=, )|^)/(?:[^/,]*/)*")
"""The folder in which a mark's line is, on this machine."""


def plan_of(what: Explainable) -> str:
    """Returns the plan of a build, or of what a compilation returned, as YAML.

    Raises:
        InvalidInputError: If it isn't a build.
    """
    decided = decided_of(what)
    completed = decided.completed
    # It is completed again from what the user has, and what is added then is added again.
    completed = completed.with_main(without_brought(completed.main))
    values, ops = _needed(decided.problem, completed)
    main = completed.main
    pinned = "1 is" if len(ops) == 1 else f"{len(ops) or 'none'} are"
    count = f"{len(main.ops)} ops, of which {pinned} pinned; the others follow"
    title = f"Plan of {completed.name or 'a program'}: {count}."
    if decided.options.memory_bytes is not None:
        title += " What is computed again follows from the limit of memory."
    return plan_text(
        decided.mesh,
        "\n".join((title, *_to_say_again(decided.options, main))),
        [_pinned_value(main.values[name]) for name in main.values if name in values],
        [_pinned_op(op) for op in main.ops if op.results[0] in ops],
        main.values,
        decided.options.memory_bytes,
        apart=any(port.part is not None for port in completed.signature.inputs),
        activations=tuple(_activations(main)),
        offload=decided.options.offloaded or (),
        chunks=decided.options.chunks,
        update=decided.options.update,
    )


def _to_say_again(options: CompileOptions, main: Function) -> Iterator[str]:
    """Yields what a plan was made for and doesn't say to a compiler."""
    parts = []
    if options.pipeline:
        stages = 1 + max((op.stage for op in main.ops), default=0)
        parts.append(
            f"a pipeline of {counted(stages, 'stage')} along {options.pipeline},"
            f" schedule {options.schedule}"
        )
    times = max((options.microbatches, *map(microbatches, main.ops)))
    if times > 1:
        parts.append(f"a batch in {times} microbatches")
    if parts:
        yield f"It is for {', and '.join(parts)}: say so again where you compile with it."


def save_plan(what: Explainable, path: str | Path) -> None:
    """Writes the plan of a build, or of what a compilation returned.

    Raises:
        InvalidInputError: As `plan_of`, or if the file can't be written.
    """
    expect(PATH, path=path)
    check_file(path)
    write_file(path, [plan_of(what)])


def _needed(problem: Problem, completed: Program) -> tuple[set[str], set[str]]:
    """Returns the values, and the ops by their first results, that a plan must pin."""
    main, calls = completed.main, problem.calls
    renewed = set(_renewed(main))
    values = {value.name for value in main.values.values() if _is_given(main, value)}
    ops = {op.results[0] for op in decisive_ops(completed, calls)} - renewed
    everything = {
        op.results[0] for op in main.ops if calls.call_of(op, main.values).has_rule
    } - renewed
    for left in reversed(range(ROUNDS)):
        pinned = replace(problem, program=_as_planned(completed, values, ops))
        again = propagated(pinned, None).program.main
        more_values, more_ops = set(_other_values(main, again)), set(_other_ops(main, again))
        if not more_values and more_ops <= ops:
            break
        values |= more_values
        ops |= (more_ops & everything) if left else everything
    return values, ops


def _is_given(main: Function, value: Value) -> bool:
    """Whether a plan says how a value lies from the start: weights, inputs, pinned activations."""
    if value.dist is None or not value.shape:
        return False
    if value.role == "optimizer_state" or value.name in dict(main.aliases):
        return False
    kind = value.origin.kind if value.origin is not None else ""
    return value.role in GIVEN or kind in PINNED


def _renewed(main: Function) -> Iterator[str]:
    """Yields the views that completion took again in another phase: a model doesn't have them."""
    for op in main.ops:
        base, _, phase = op.results[0].rpartition(".")
        if phase.rstrip("0123456789") == op.phase and base in main.values:
            yield op.results[0]


def _as_planned(completed: Program, values: Iterable[str], ops: Iterable[str]) -> Program:
    """Returns the program with nothing pinned but what a plan pins."""
    main, origin = completed.main, Origin("annotated", "the plan")
    exact = Origin("inherited", "the plan")
    kept_values, kept_ops = set(values), set(ops)
    pinned = {
        name: replace(value, origin=exact)
        if name in kept_values
        else replace(value, dist=None, origin=None)
        for name, value in main.values.items()
    }
    chosen = tuple(
        replace(op, origin=origin)
        if op.results[0] in kept_ops
        else replace(op, dist=None, origin=None)
        for op in main.ops
    )
    return completed.with_main(replace(main, values=pinned, ops=chosen))


def _other_ops(main: Function, again: Function) -> Iterator[str]:
    """Yields the ops that are computed otherwise."""
    found = {op.results: op.dist for op in again.ops}
    yield from (op.results[0] for op in main.ops if found.get(op.results) != op.dist)


def _other_values(main: Function, again: Function) -> Iterator[str]:
    """Yields what lies otherwise: inputs, what is returned, and what goes to another slice."""
    follow = _made(main) - set(_sent(main))
    updated = dict(main.aliases)
    for name, value in main.values.items():
        other = again.values[name]
        differs = value.dist is not None and other.dist is not None and value.dist != other.dist
        if differs and name not in updated and (name not in follow or name in main.outputs):
            yield name


def _made(main: Function) -> set[str]:
    return {name for op in main.ops for name in op.results}


def _sent(main: Function) -> Iterator[str]:
    """Yields the values that are kept, or read, on another part of the mesh than they are made."""
    places: dict[str, Fixed] = {}
    for op in main.ops:
        here = fixed_of(op.dist)
        yield from (name for name in op.operands if places.get(name, here) != here)
        for name in op.results:
            places[name] = here
            if fixed_of(main.values[name].dist) != here:
                yield name


def _activations(main: Function) -> Iterator[PinnedActivations]:
    """Yields what the user wants of activations; regions that the model's code marks it says."""
    known: set[PinnedActivations] = set()
    for op in main.ops:
        choice, region = choice_of(op) if op.phase == "forward" else ("", "")
        if choice and not region.startswith(NUMBERED):
            found = PinnedActivations(region or op.results[0], choice, bool(region))
            if found not in known:
                known.add(found)
                yield found


def _pinned_value(value: Value) -> PinnedValue:
    assert value.dist is not None
    kind = value.origin.kind if value.origin is not None else ""
    # What is stored is where it is read, unless the user sends it elsewhere.
    is_placed = value.role not in STORED_ROLES or kind == "annotated"
    return PinnedValue(value.name, value.dist, _reason(value), is_placed)


def _pinned_op(op: Op) -> PinnedOp:
    assert op.dist is not None
    kind = op.origin.kind if op.origin is not None else "default"
    return PinnedOp(op.results[0], op.dist, f"{op.kind}{_place(op.loc)}, {kind}")


def _reason(value: Value) -> str:
    """Returns why a value lies so, alike for values of repeated layers."""
    origin = value.origin or Origin("default")
    if origin.detail.startswith(SHARES_STORAGE):
        return f"{origin.kind}: as its new content"
    # An inherited layout is detailed by a file of this machine: a plan that was compiled again.
    if origin.kind in PINNED and origin.kind != "inherited" and origin.detail:
        return f"{origin.kind}: {_ABSOLUTE.sub('', origin.detail)}"
    return origin.kind


def _place(loc: Loc) -> str:
    """Returns a location without the folders of this machine."""
    known = loc.file or loc.name
    return f" at {replace(loc, file=Path(loc.file).name)}" if known else ""
