"""What is said of chunks: loops, what they save and take, and what isn't in parts.

Figures are those of one device that computes all, with nothing computed again to fit into memory:
without and with the cuts of a pin. They follow from the serial program, so nothing is planned twice
for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from autopar.annotate.chunk_pins import BY_LIMIT
from autopar.base.units import human_bytes, human_seconds
from autopar.cost import Cluster, evaluate, memory_timeline
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.program import MICROBATCH, Function, Op, Program
from autopar.partition import UnrollLoops
from autopar.planning.chunk import Chunks, Left
from autopar.planning.chunk.best import Made, of_microbatches

REPORTED = "chunk"
"""The category of report entries."""

SHOWN = 3
"""How many of the modules and values are named that aren't in parts."""

_NO_TIME = 1e-9
"""Seconds by which the rounding of sums may tell programs apart."""


_LITTLE = 0.01
"""Part of what a device holds that is nothing to save."""


class Alone(NamedTuple):
    """What one device takes.

    Attributes:
        peak_bytes: What it holds at most.
        seconds: Serialized.
    """

    peak_bytes: int
    seconds: float

    @classmethod
    def of(cls, program: Program, cluster: Cluster) -> Alone:
        """Returns what a serial program takes, of microbatches one."""
        alone = UnrollLoops(but=MICROBATCH)(program)
        return cls(memory_timeline(alone).peak_bytes, evaluate(alone, cluster).serialized_seconds)


def chunks_reported(program: Program, chunks: Chunks, cluster: Cluster) -> tuple[ReportEntry, ...]:
    """Returns what is said of a serial program's loops, but of that over microbatches.

    Args:
        program: The program with its loops.
        chunks: What was cut of it.
        cluster: The hardware.
    """
    loops: dict[tuple[str, int], list[Op]] = {}
    for op in program.main.ops:
        for name, trip in op.loops:
            if name != MICROBATCH:
                loops.setdefault((name, trip), []).append(op)
    cuts = {loop: made for made in chunks.made for loop in made.loops}
    entries = [
        ReportEntry(REPORTED, name, _loop(len(ops), trip, cuts.get(name)), ops[0].loc)
        for (name, trip), ops in loops.items()
    ]
    return (*entries, *_effects(chunks, cluster), *map(_left, chunks.left))


def _loop(ops: int, trip: int, made: Made | None) -> str:
    """Returns what is said of a loop, in words."""
    if made is None:
        return f"{ops} ops in {trip} parts, one after another"
    parts, cut = made.cut.parts if made.cut.is_known else trip, made.cut
    wanted, is_said = made.wanted.parts, made.wanted.place != BY_LIMIT
    other = f" instead of {wanted}" if is_said and cut.is_known and parts != wanted else ""
    along = f"over dimension {cut.dim} of %{made.seed}"
    return f"{ops} ops in {parts} parts{other} {along}, one after another"


def _effects(chunks: Chunks, cluster: Cluster) -> Iterator[ReportEntry]:
    """Yields what is said of what a pin saves and takes."""
    known: dict[int, Alone] = {}

    def alone(main: Function) -> Alone:
        if id(main) not in known:
            known[id(main)] = Alone.of(chunks.program.with_main(main), cluster)
        return known[id(main)]

    for place, made in groupby(chunks.made, key=lambda each: each.wanted.place):
        cuts = list(made)
        if place != BY_LIMIT:
            before, after = alone(cuts[0].before), alone(cuts[-1].after)
            effect = _effect(before, after, of_microbatches(cuts[0].before))
            yield ReportEntry(REPORTED, place, effect)


def _effect(before: Alone, after: Alone, where: str) -> str:
    """Returns what parts save and take, in words; where it is that they save nothing."""
    whole, parts = human_bytes(before.peak_bytes), human_bytes(after.peak_bytes)
    more = after.seconds - before.seconds
    time = f"in {human_seconds(abs(more))} {'more' if more > 0 else 'less'}"
    if abs(more) < _NO_TIME:
        time = "in as much time"
    held = f"{whole} -> {parts}"
    if after.peak_bytes > before.peak_bytes:
        held = f"more in parts than as a whole, {held}"
    elif after.peak_bytes > (1 - _LITTLE) * before.peak_bytes:
        held = f"as much in parts as as a whole{where}, {whole}"
    else:
        return f"one device holds {held}, {time}"
    return (
        f"one device holds {held}, {time}; name another value, dimension or number of parts, or"
        " leave it out"
    )


def _left(left: Left) -> ReportEntry:
    """Returns what is said of what isn't in parts."""
    misses = [f"{miss.name!r}: {miss.why}" for miss in left.misses[:SHOWN]]
    if len(left.misses) > SHOWN:
        misses.append(f"and {len(left.misses) - SHOWN} more")
    detail = (
        f"{len(left.misses)} of {left.matches} modules and values that match aren't in"
        f" {left.pin.parts} parts: {'; '.join(misses)}"
    )
    return ReportEntry(REPORTED, left.pin.place, detail)
