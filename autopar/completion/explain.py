"""Explain: what a user should know of a completed program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autopar.cost import Cluster, CommunicationModel, Reshard, ReshardPlanner
from autopar.ir.distribution import consumed, produced, replicated
from autopar.ir.layout import ORIGIN_KINDS, Layout
from autopar.ir.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import Function, Op, Program

MOVES_WITHOUT_CONFLICT = frozenset(("all_reduce", "reduce_scatter"))
"""What finishes a reduction; any other collective means that two layouts disagree."""


def explain(program: Program, cluster: Cluster) -> tuple[ReportEntry, ...]:
    """Returns the remarks about a completed program, in the order of its ops.

    `replicated`: an op without a rule, with the bytes that every rank computes. `reshard`: a value
    whose layout is not the one that an op needs, with the bytes that arrive at the rank with the
    largest piece. `origins`: how many values have their layout from where.

    Args:
        program: Serial and completed.
        cluster: The hardware whose costs decide how a value is resharded.
    """
    if program.mesh is None:
        return ()
    planner = ReshardPlanner(CommunicationModel(cluster, program.mesh))
    main = program.main
    entries: dict[tuple[str, Layout | str], ReportEntry] = {}
    for op in main.ops:
        if op.origin is not None and op.origin.kind == "fallback":
            entries[op.results[0], "fallback"] = _fallback(op, main, program.mesh)
        for name, source, target in _changes(op, main, program.mesh):
            plan = planner.plan(source, target, main.values[name].itemsize)
            if (name, target) not in entries and _is_conflict(plan):
                entries[name, target] = _reshard(op, name, source, target, plan)
    return (*entries.values(), _origins(main))


def _fallback(op: Op, main: Function, mesh: ProcessMesh) -> ReportEntry:
    nbytes = 0
    for name in op.results:
        value = main.values[name]
        count = value.itemsize
        for size in value.global_shape:
            count *= size
        nbytes += count
    detail = f"{op.origin.detail if op.origin else ''}: all {mesh.size} processes compute all of it"
    return ReportEntry("replicated", op.kind, detail, op.loc, nbytes)


def _changes(op: Op, main: Function, mesh: ProcessMesh) -> Iterator[tuple[str, Layout, Layout]]:
    """Yields the values around an op with the layout they have and the one they need."""
    rule = rule_of(op, main.values)
    for at, name in enumerate(op.operands):
        stored = main.values[name].dist
        if stored is not None and op.dist is not None:
            shape = main.values[name].global_shape
            needed = consumed(rule, op.dist, at) if rule else replicated(mesh, shape)
            yield name, stored, needed
    for at, name in enumerate(op.results):
        stored = main.values[name].dist
        if stored is not None and op.dist is not None:
            shape = main.values[name].global_shape
            yield name, produced(rule, op.dist, at) if rule else replicated(mesh, shape), stored


def _is_conflict(plan: Reshard) -> bool:
    return any(move.bytes and move.kind not in MOVES_WITHOUT_CONFLICT for move in plan.moves)


def _reshard(op: Op, name: str, source: Layout, target: Layout, plan: Reshard) -> ReportEntry:
    kinds = ", ".join(move.kind for move in plan.moves if move.bytes)
    return ReportEntry("reshard", name, f"{source} -> {target}: {kinds}", op.loc, plan.bytes)


def _origins(main: Function) -> ReportEntry:
    counts = Counter(value.origin.kind for value in main.values.values() if value.origin)
    text = ", ".join(f"{counts[kind]} {kind}" for kind in ORIGIN_KINDS if counts[kind])
    return ReportEntry("origins", f"{len(main.values)} values", text)
