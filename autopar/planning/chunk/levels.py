"""Levels: the loops of which a region consists.

What leaves a region may come back, as the loss does to the gradients of what it was computed of. So
a region has *levels*: an op is one level above what it reads of a region as a whole. Each level is
a loop. What an op reads, in parts, of a lower level is computed again if it is large.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from autopar.ir.program import Loops, Op
from autopar.planning.chunk.cut import Cut
from autopar.planning.chunk.region import Key, Region


def levels_of(region: Region) -> dict[Key, int]:
    """Returns the level of each op of a region, see above."""
    loops: dict[Loops, int] = {}
    while True:
        levels, reached = _levels_of(region, loops)
        if reached == loops:
            return levels
        loops = reached


def _levels_of(
    region: Region, loops: Mapping[Loops, int]
) -> tuple[dict[Key, int], dict[Loops, int]]:
    """Returns the levels of a region's ops, and that at which each other loop begins.

    Args:
        region: The region.
        loops: Where loops begin as far as is known: all ops of one wait for what any of them reads.
    """
    levels: dict[Key, int] = {}
    outside: dict[str, int] = {}
    reached: dict[Loops, int] = {}
    makers = region.makers
    deepest = 0
    for op in region.main.ops:
        needs: Sequence[Cut | None] = [None] * len(op.operands)
        if op.results in region.ops:
            needs = region.ops[op.results].operands
        level = 0
        for name, need in zip(op.operands, needs, strict=True):
            made = makers.get(name)
            if made is None or made.results not in levels:
                level = max(level, outside.get(name, 0))
            else:
                is_same = need is not None and region.cuts.get(name) == need
                level = max(level, levels[made.results] + (not is_same))
        if op.results in region.ops:
            if region.phases_apart and op.phase != "forward":
                level = max(level, 1 + deepest)
            elif op.phase == "forward":
                deepest = max(deepest, level)
            levels[op.results] = level
            continue
        if loop := region.loop_beside(op):
            level = reached[loop] = max(level, loops.get(loop, 0), reached.get(loop, 0))
        outside.update(dict.fromkeys(op.results, level))
    return levels, reached


@dataclass(frozen=True)
class Level:
    """What is in one loop.

    Attributes:
        number: How many levels there are below it.
        ops: Its ops, and those of lower levels that it computes again, in the program's order.
            What is made for higher levels alone is computed there.
        again: The results of the latter.
        reads: What it reads of lower levels, put together.
    """

    number: int
    ops: Sequence[Op]
    again: frozenset[str]
    reads: frozenset[str]


def _level_of(
    region: Region,
    levels: Mapping[Key, int],
    level: int,
    on_level: Sequence[Op],
    wanted: Collection[str],
) -> Level:
    """Returns a level of a region.

    Args:
        region: The region.
        levels: Those of its ops.
        level: Which one.
        on_level: The ops on it.
        wanted: What higher levels read, put together.
    """
    makers = region.makers
    waiting = [op for op in on_level if any(region.is_left(name, wanted) for name in op.results)]
    own, again, reads = {op.results for op in waiting}, set[str](), set[str]()
    while waiting:
        op = waiting.pop()
        for name, need in zip(op.operands, region.ops[op.results].operands, strict=True):
            made = makers.get(name)
            if made is None or made.results not in levels or made.results in own:
                continue
            is_same = need is not None and region.cuts.get(name) == need
            if levels[made.results] < level and not (is_same and region.is_large(name)):
                reads.add(name)
                continue
            own.add(made.results)
            again.update(made.results if levels[made.results] < level else ())
            waiting.append(made)
    ops = [region.main.ops[at] for at in sorted(region.places[key] for key in own)]
    return Level(level, ops, frozenset(again), frozenset(reads - again))


def levels_in(region: Region) -> list[Level]:
    """Returns the levels of a region, lower ones first."""
    levels = levels_of(region)
    found: list[Level] = []
    wanted: set[str] = set()
    on_level: dict[int, list[Op]] = {}
    for key, at in region.places.items():
        on_level.setdefault(levels[key], []).append(region.main.ops[at])
    for each in sorted(on_level, reverse=True):
        level = _level_of(region, levels, each, on_level[each], wanted)
        wanted.update(level.reads)
        found.append(level)
    return [level for level in reversed(found) if level.ops]
