"""Explain: what a user should know of a completed program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autopar.base.units import counted
from autopar.cost import Reshard, ReshardPlanner
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.expr.expression import planned, prod
from autopar.ir.layout import ORIGIN_KINDS, Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import STORED_ROLES, Function, Op, OpDist, Program
from autopar.ir.rules.distribution import consumed, produced, replicated
from autopar.ir.rules.foreign import bare_kind
from autopar.ir.rules.rule import Rule

MOVES_WITHOUT_CONFLICT = frozenset(("all_reduce", "reduce_scatter"))
"""What finishes a reduction; any other collective means that two layouts disagree."""

Layouts = tuple[Layout, ...]


def explain(program: Program, planner: ReshardPlanner) -> tuple[ReportEntry, ...]:
    """Returns the remarks about a completed program, in the order of its ops.

    `replicated`: an op without a rule, with the bytes that every rank computes. `reshard`: a value
    whose layout is not the one that an op needs, with the bytes that arrive at the rank with the
    largest piece; but for what is stored split and gathered where it is read, as a strategy wants
    it. `origins`: how many values have their layout from where.

    Args:
        program: Serial and completed.
        planner: Knows how a value is resharded.
    """
    if program.mesh is None:
        return ()
    main = program.main
    changes = _Changes(main)
    weights = _weights(main)
    entries: dict[tuple[str, Layout | str], ReportEntry] = {}
    for op in main.ops:
        if op.origin is not None and op.origin.kind == "fallback":
            mesh = op.dist.mesh if op.dist is not None else program.mesh
            entries[op.results[0], "fallback"] = _fallback(op, main, mesh)
        for name, source, target in changes.around(op):
            plan = planner.plan(source, target, main.values[name].itemsize)
            if (name, target) in entries or (name in weights and _gathers(plan)):
                continue
            if _is_conflict(plan):
                entries[name, target] = _reshard(op, name, source, target, plan)
    return (*entries.values(), _origins(main))


def _fallback(op: Op, main: Function, mesh: ProcessMesh) -> ReportEntry:
    nbytes = 0
    for name in op.results:
        value = main.values[name]
        nbytes += planned(prod(value.global_shape)) * value.itemsize
    detail = f"{op.origin.detail if op.origin else ''}: all {mesh.size} processes compute all of it"
    return ReportEntry("replicated", bare_kind(op.kind), detail, op.loc, nbytes)


class _Changes:
    """Finds the values around ops with the layout they have and the one they need.

    Equal ops with equal choices need equal layouts, which are derived once.
    """

    def __init__(self, main: Function) -> None:
        self.values = main.values
        self._known: dict[tuple[int, OpDist], tuple[Layouts, Layouts]] = {}
        self._rules: list[Rule] = []

    def around(self, op: Op) -> Iterator[tuple[str, Layout, Layout]]:
        """Yields (value, layout it has, layout it needs) where the two differ."""
        if op.dist is None:
            return
        taken, made = self._needed(op, op.dist)
        for name, needed in zip(op.operands, taken, strict=True):
            stored = self.values[name].dist
            if stored is not None and stored != needed:
                yield name, stored, needed
        for name, left in zip(op.results, made, strict=True):
            stored = self.values[name].dist
            if stored is not None and stored != left:
                yield name, left, stored

    def _needed(self, op: Op, dist: OpDist) -> tuple[Layouts, Layouts]:
        rule = rule_of(op, self.values)
        if rule is None:
            shapes = ([self.values[n].global_shape for n in ns] for ns in (op.operands, op.results))
            taken, made = (tuple(replicated(dist.mesh, s) for s in side) for side in shapes)
            return taken, made
        key = (id(rule), dist)
        if key not in self._known:
            # A rule that is kept can't leave its id to another.
            self._rules.append(rule)
            self._known[key] = (
                tuple(consumed(rule, dist, position) for position in range(len(op.operands))),
                tuple(produced(rule, dist, position) for position in range(len(op.results))),
            )
        return self._known[key]


def _is_conflict(plan: Reshard) -> bool:
    return any(move.bytes and move.kind not in MOVES_WITHOUT_CONFLICT for move in plan.moves)


def _weights(main: Function) -> set[str]:
    """Returns what is stored, but not as the user wants it, and what is made of that alone."""
    weights = {
        name
        for name, value in main.values.items()
        if value.role in STORED_ROLES and (value.origin is None or value.origin.kind != "annotated")
    }
    for op in main.ops:
        if op.operands and weights.issuperset(op.operands):
            weights.update(op.results)
    return weights


def _gathers(plan: Reshard) -> bool:
    return all(move.kind == "all_gather" for move in plan.moves if move.bytes)


def _reshard(op: Op, name: str, source: Layout, target: Layout, plan: Reshard) -> ReportEntry:
    kinds = ", ".join(move.kind for move in plan.moves if move.bytes)
    return ReportEntry("reshard", name, f"{source} -> {target}: {kinds}", op.loc, plan.bytes)


def _origins(main: Function) -> ReportEntry:
    counts = Counter(value.origin.kind for value in main.values.values() if value.origin)
    text = ", ".join(f"{counts[kind]} {kind}" for kind in ORIGIN_KINDS if counts[kind])
    return ReportEntry("origins", counted(len(main.values), "value"), text)
