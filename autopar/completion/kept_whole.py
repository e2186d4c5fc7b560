"""Says which open sizes ops keep whole, though they could split numbers in their place."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.expr.at_sizes import at_sizes
from autopar.ir.expr.expression import IntExpr, sizes_of
from autopar.ir.ops import rule_of
from autopar.ir.program import Op, Program
from autopar.ir.rules.foreign import bare_kind
from autopar.ir.rules.rule import Rule
from autopar.ir.used_sizes import used_sizes

KEPT_WHOLE = "kept whole"
"""The category of entries about open sizes that aren't split."""


def kept_whole(program: Program) -> tuple[ReportEntry, ...]:
    """Returns a remark for each kind of op that keeps open sizes whole, and for which.

    Of windows whose length depends on a size, or that may not fit it evenly, no parts are known.
    An op computes all of such a dimension, and splits others as always. Ops that only move
    elements, as reshapes, aren't named.

    Args:
        program: Serial, on a mesh.
    """
    planned = {size.name: size.planned for size in used_sizes(program)}
    if program.mesh is None or program.mesh.size == 1 or not planned:
        return ()
    numbered = at_sizes(program, planned).main
    found: dict[tuple[str, str], list[Op]] = {}
    for op, same in zip(program.main.ops, numbered.ops, strict=True):
        rule, known = rule_of(op, program.main.values), rule_of(same, numbered.values)
        if rule is None or known is None or rule is known or not known.work:
            continue
        shapes = [program.main.values[name].global_shape for name in op.results]
        if names := ", ".join(sorted(set(_lost(rule, known, shapes)))):
            found.setdefault((bare_kind(op.kind), names), []).append(op)
    return tuple(_entry(*key, ops) for key, ops in found.items())


def _lost(rule: Rule, known: Rule, shapes: list[tuple[IntExpr, ...]]) -> Iterator[str]:
    """Yields the open sizes of results that a rule for numbers splits, and this one doesn't."""
    here, there = _splittable(rule), _splittable(known)
    sides = zip(rule.results, known.results, shapes, strict=True)
    for dims, known_dims, shape in sides:
        for dim, known_dim, size in zip(dims, known_dims, shape, strict=True):
            if there.intersection(known_dim) and not here.intersection(dim):
                yield from (each.name for each in sizes_of(size))


def _splittable(rule: Rule) -> frozenset[str]:
    bodies = (body.rule for body in rule.bodies)
    return frozenset(rule.splittable).union(*(each.splittable for each in bodies))


def _entry(kind: str, names: str, ops: list[Op]) -> ReportEntry:
    count = f"in {len(ops)} ops" if len(ops) > 1 else "in an op"
    return ReportEntry(KEPT_WHOLE, kind, f"{names} {count}; --dims can bind it", ops[0].loc)
