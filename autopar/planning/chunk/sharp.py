"""Sharp ops: what they say of an extremum, and of what is computed again, may be wrong.

A level computes large values again, in other parts of other processes than the level before, so the
last bits may differ. That doesn't matter where all is continuous. But the maximum of the one is no
element of the other: who looks for it finds nothing. Such ops are in no iteration.
"""

from __future__ import annotations

from autopar.ir.ops import rule_of
from autopar.ir.ops.elementwise.sharp import SMOOTH, is_sharp
from autopar.ir.ops.reduce.arg_reduction import WITH_EXTREMA
from autopar.ir.program import Op
from autopar.planning.chunk.levels import levels_in, levels_of
from autopar.planning.chunk.region import Key, Region

WHY = "it looks for an extremum in what is computed again"
"""Why they aren't."""

_OUTSIDE = -1


def sharp_in(region: Region) -> set[Key]:
    """Returns the ops of a region that look for extrema in what it computes again."""
    levels = levels_of(region)
    if not any(levels.values()):
        return set()
    # What is computed again is so on the highest level that needs it.
    highest = {op.results: each.number for each in levels_in(region) for op in each.ops}
    found, parts = set[Key](), set[str]()
    # Of what depends on extrema, the lowest level of one.
    lowest: dict[str, int] = {}
    for op in region.main.ops:
        level = levels.get(op.results, _OUTSIDE)
        known = [lowest[name] for name in op.operands if name in lowest]
        is_late = any(each < highest.get(op.results, level) for each in known)
        if is_late and is_sharp(op) and _is_large(op, region):
            found.add(op.results)
        if level == _OUTSIDE and parts.isdisjoint(op.operands):
            continue
        parts.update(op.results)
        if _is_smooth(op, region):
            continue
        if known or _is_extremum(op, region):
            lowest.update(dict.fromkeys(op.results, min(known, default=level)))
    return found


def _is_large(op: Op, region: Region) -> bool:
    return any(region.is_large(name) for name in (*op.operands, *op.results))


def _is_extremum(op: Op, region: Region) -> bool:
    """Whether an op has a maximum or a minimum."""
    return op.kind in WITH_EXTREMA or not _monoids(op, region).isdisjoint(("max", "min"))


def _is_smooth(op: Op, region: Region) -> bool:
    """Whether nothing of what depends on an op's operands is near where others are sharp."""
    return op.kind in SMOOTH or "sum" in _monoids(op, region)


def _monoids(op: Op, region: Region) -> set[str]:
    rule = rule_of(op, region.main.values)
    return set(rule.reduce.values()) if rule else set()
