"""Which cut is made of values of which one is to be cut: that by which most is gained."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from autopar.base.errors import AnnotationError
from autopar.ir.chunks import chunk_of, without_chunk
from autopar.ir.expr.expression import planned, prod
from autopar.ir.ops import rule_of
from autopar.ir.ops.loops import microbatches
from autopar.ir.ops.reduce.arg_reduction import WITH_EXTREMA
from autopar.ir.program import Function, Op, Program
from autopar.ir.rules.rule import SAME
from autopar.planning.chunk.cut import Cut
from autopar.planning.chunk.halo import without_halo
from autopar.planning.chunk.levels import levels_in
from autopar.planning.chunk.order import in_order
from autopar.planning.chunk.region import Key, Known, Region, bytes_of, grown, with_bodies
from autopar.planning.chunk.sharp import WHY, sharp_in
from autopar.planning.chunk.split import is_splittable
from autopar.planning.chunk.wanted import Wanted, steady
from autopar.planning.chunk.write import LoopWriter
from autopar.planning.chunk.writer import Writer

_NEAR = 0.1
"""Relative difference of the bytes that cuts save which doesn't count."""

_MORE = 3
"""How many more parts are tried where slices have only a part of a block."""

_STRIDES = (2, 4, 8, 16)
"""Blocks that are tried where rows are read in strides are multiples of these."""


class NothingGained(AnnotationError):
    """What is wanted in parts isn't smaller so.

    Args:
        place: Where the user says so.
        name: What he calls it.
        parts: How many parts.
        why: What is in the way.
    """

    def __init__(self, place: str, name: str, parts: int, why: str) -> None:
        self.name, self.why = name, why
        super().__init__(
            f"{place}: {name!r} can't be computed in {parts} parts: {why}; name another value or"
            " dimension, or leave it out"
        )


def loops_in(main: Function) -> dict[str, None]:
    """Returns the names of a function's loops, in the order in which they begin."""
    return dict.fromkeys(loop for op in main.ops for loop, _ in op.loops)


class Made(NamedTuple):
    """A cut that was made.

    Attributes:
        wanted: What was to be cut.
        seed: The value that is.
        cut: How.
        loops: The loops that it became, the first one first.
        before, after: The function before and after.
    """

    wanted: Wanted
    seed: str
    cut: Cut
    loops: tuple[str, ...]
    before: Function
    after: Function


def best_cut(
    main: Function, program: Program, wanted: Sequence[Wanted], phases_apart: bool
) -> Made:
    """Cuts one of some values: that by which most is gained.

    Args:
        main: The function.
        program: What it is in.
        wanted: The values, and how they are to be cut.
        phases_apart: Whether what is computed in one phase waits for no other one.

    Raises:
        AnnotationError: If nothing is gained by any.
    """
    loop = _fresh(main, program, wanted[0].name)
    regions: list[Region] = []
    known: Known = {}
    for each in wanted:
        for cut in each.cuts(main):
            if not any(_has_grown(region, each.value, cut) for region in regions):
                regions.append(_grown(main, loop, each, cut, phases_apart, known))
    values = main.values.keys() - steady(main)
    found = [region for region in regions if region.gained(values) > 0]
    if not found:
        raise _nothing_gained(main, wanted, regions)
    enough = [each for each in found if each.cuts[each.seed].fills(wanted[0].parts)]
    found = enough or found
    saved = [_saved(region, values) for region in found]
    least = max(saved) - _NEAR * abs(max(saved))
    best = [region for region, each in zip(found, saved, strict=True) if each >= least]
    # Processes share what is in front of what is cut; alone, one has its rows side by side.
    shared = program.mesh is not None and program.mesh.size > 1
    region = max(best, key=_in_front) if shared else min(best, key=_in_front)
    after = _written(region)
    loops = tuple(each for each in loops_in(after) if each not in loops_in(main))
    return Made(wanted[0], region.seed, region.cuts[region.seed], loops, main, after)


def _nothing_gained(
    main: Function, wanted: Sequence[Wanted], regions: Sequence[Region]
) -> AnnotationError:
    """Returns the error of what isn't smaller in parts."""
    first = wanted[0]
    if first.parts == 1:
        return AnnotationError(
            f"{first.place}: one part is all of {first.name!r}; give two or more, or leave it out"
        )
    refused = (f"%{key[0]}: {why}" for each in regions for key, why in each.refused.items())
    why = _no_dimension(main, wanted)
    if regions:
        why = "nothing is saved, as what is large is an output, or read as a whole"
        why += of_microbatches(main)
    return NothingGained(first.place, first.name, first.parts, next(refused, why))


def of_microbatches(main: Function) -> str:
    """Returns that it is a microbatch that is cut, where it is, as what follows in a message."""
    times = max(map(microbatches, main.ops), default=1)
    return f", in one of {times} microbatches" if times > 1 else ""


def _no_dimension(main: Function, wanted: Sequence[Wanted]) -> str:
    """Returns why there is nothing along which values could be cut."""
    dim = wanted[0].dim
    if dim is None:
        return "it has no dimension of two or more elements"
    if any(dim < len(main.values[each.value].shape) for each in wanted):
        return f"its dimension {dim} has fewer than two elements"
    return f"it has no dimension {dim}, as they are counted from 0"


def _has_grown(region: Region, value: str, cut: Cut) -> bool:
    """Whether a region grows from a value, too: it is in it, and as large."""
    sizes = (bytes_of(region.main.values[name]) for name in (region.seed, value))
    return region.cuts.get(value) == cut and len({*sizes}) == 1


def _in_front(region: Region) -> int:
    """Returns how often there is what is cut, side by side."""
    cut, shape = region.cuts[region.seed], region.main.values[region.seed].shape
    return planned(prod((cut.outer, *shape[: cut.dim])))


def _saved(region: Region, values: Collection[str]) -> float:
    """Returns the bytes that are saved by a region, less those that are computed again."""
    gained = region.gained(values) * (1 - region.cuts[region.seed].share)
    made = Counter(name for level in levels_in(region) for op in level.ops for name in op.results)
    large = (name for name in made if region.is_large(name))
    return gained - sum((made[name] - 1) * region.bytes_of(name) for name in large)


def _grown(
    main: Function, loop: str, wanted: Wanted, cut: Cut, phases_apart: bool, known: Known
) -> Region:
    """Returns the region of a value, cut into a few more or fewer parts where that is wanted."""
    first = _grown_with_bodies(main, loop, wanted, cut, phases_apart, known)
    for other in _others(cut) if first.is_misaligned else ():
        region = _grown_with_bodies(main, loop, wanted, other, phases_apart, known)
        if not region.is_misaligned:
            return region
    return first


def _others(cut: Cut) -> list[Cut]:
    """Returns cuts of a few more parts, or into whole strides; those that are nearest first."""
    inner, block = cut.inner, cut.runs[0].block
    if not isinstance(inner, int) or not isinstance(block, int):
        return [cut.shorter(number) for number in range(1, 1 + _MORE)]
    more = [-(-inner // (cut.parts + more)) for more in range(1, 1 + _MORE)]
    for stride in _STRIDES:
        down = block // stride * stride
        more += [down, down + stride]
    blocks = dict.fromkeys(each for each in more if 0 < each < inner).keys() - {block}
    others = (cut.of_blocks(inner, each) for each in blocks)
    return sorted(others, key=lambda each: _parts_off(cut, each))


def _parts_off(cut: Cut, other: Cut) -> tuple[int, int]:
    """Returns how many more or fewer parts there are with another block, more of them first."""
    more = other.parts - cut.parts
    return abs(more), -more


def _grown_with_bodies(
    main: Function, loop: str, wanted: Wanted, cut: Cut, phases_apart: bool, known: Known
) -> Region:
    """Returns the region of a value; ops are replaced by their bodies where that lets it grow."""
    banned: dict[Key, str] = {}
    while True:
        seed = wanted.value
        region = grown(main, loop, seed, cut, phases_apart=phases_apart, banned=banned, known=known)
        ops = [op for op in main.ops if _needs_body(op, region)]
        if ops:
            main = with_bodies(main, ops)
        elif without := without_halo(region):
            banned |= without
        elif sharp := sharp_in(region):
            banned |= dict.fromkeys(sharp, WHY)
        else:
            return region


def _needs_body(op: Op, region: Region) -> bool:
    """Whether an op is in no iteration by itself, or leaves sums that are better told apart."""
    if op.results not in region.ops and op.results not in region.refused:
        return False
    # What a search is replaced by compares what is computed again with its extremum.
    if op.kind in WITH_EXTREMA:
        return False
    rule = rule_of(op, region.main.values)
    if rule is None or not rule.bodies:
        return False
    if op.results in region.ops:
        parts = region.ops[op.results].results
        reduced = any(not isinstance(part, Cut) and part != SAME for part in parts)
        return len(op.results) > 1 and reduced
    body = rule.bodies[0].rule
    for at, name in enumerate((*op.operands, *op.results)):
        cut = region.cuts.get(name)
        if cut is None or not region.is_large(name):
            continue
        dims = (*body.operands, *body.results)[at]
        if is_splittable(body, dims, cut):
            return True
    return False


def _written(region: Region) -> Function:
    """Returns the function of a region with its loops."""
    main, loops = region.main, levels_in(region)
    to, blocks = Writer(main.values), []
    wanted = frozenset(name for each in loops for name in each.reads)
    for number, level in enumerate(loops):
        loop = region.loop if not number else f"{region.loop}_{number}"
        start = len(to.ops)
        LoopWriter(region, loop, level, wanted, to).write()
        blocks.append(to.ops[start:])
    outside = [op for op in main.ops if op.results not in region.ops]
    ops = in_order(region, outside, blocks)
    used = dict.fromkeys((*main.inputs, *(name for op in ops for name in op.results)))
    values = {name: to.values[name] for name in used}
    ops = [without_chunk(op) if chunk_of(op) else op for op in ops]
    return replace(main, values=values, ops=tuple(ops))


def _fresh(main: Function, program: Program, name: str) -> str:
    """Returns the name of a new loop."""
    base = re.sub(r"\W", "_", name)
    taken = {*loops_in(main)}
    taken |= set(program.mesh.dim_names) if program.mesh else set()
    loop, count = base, 1
    while any(each == loop or each.startswith(f"{loop}_") for each in taken) or loop[0].isdigit():
        loop, count = f"{base}_part{count}" if not base[0].isdigit() else f"c{base}", count + 1
    return loop
