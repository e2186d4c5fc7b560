"""What a way costs: seconds, and the bytes that blocks need on top of all that is around them.

Repeated layers are looked at once: what moves within them is the same, and only what is around
them differs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.partition.recompute.blocks import Blocks
from autopar.partition.recompute.live import moving_bytes
from autopar.partition.recompute.replay import Held, Step, replay
from autopar.partition.recompute.tape import Tape
from autopar.partition.recompute.way import NOTHING, Way

Bytes = NDArray[np.int64]

NONE = -(1 << 60)
"""Bytes where nothing runs: less than any, however many are added."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What consecutive blocks take if some of their ops are repeated.

    Attributes:
        way: The ops.
        seconds: Of the copies.
        saved: Bytes that lie between forward and backward pass.
        needed: The most bytes while the blocks' forward or backward ops run, all others' but those
            of earlier blocks' saved values included.
    """

    way: Way
    seconds: float
    saved: int
    needed: int


@dataclass(frozen=True, slots=True)
class _Moving:
    """What blocks take wherever they are.

    Attributes:
        seconds: Of the copies.
        saved: Bytes that lie between forward and backward pass.
        during: Bytes of the blocks' values while each of their ops runs.
        before: The same while the copies just before each op run; `NONE` if there are none.
    """

    seconds: float
    saved: int
    during: Bytes
    before: Bytes


class Span:
    """Consecutive blocks of a microbatch.

    Args:
        tape: The tape.
        blocks: All blocks.
        first: The first of these.
        end: The one behind the last of these.
    """

    def __init__(self, tape: Tape, blocks: Blocks, first: int, end: int) -> None:
        self.tape = tape
        self.batch = blocks.batch
        self.forward = [at for part in blocks.forward[first:end] for at in part]
        self.backward = [at for part in reversed(blocks.backward[first:end]) for at in part]
        self.places = {at: place for place, at in enumerate((*self.forward, *self.backward))}
        self.ops = np.array(list(self.places), dtype=np.int64)
        self.entering = self._entering()
        made = [value for at in self.forward for value in tape.makes[at]]
        self._values = [*made, *self.entering]

    def _entering(self) -> list[int]:
        """Returns the values that may leave here, but are of blocks before."""
        tape, end = self.tape, len(self.forward)
        return [
            value
            for value, leaving in tape.offered.items()
            if self.places.get(leaving.behind, end) < end <= self.places.get(leaving.before, -1)
            and tape.makers[value] not in self.places
            and tape.batches[tape.makers[value]] == self.batch
        ]

    def read_elsewhere(self, start: int, without: frozenset[int] = frozenset()) -> tuple[Held, ...]:
        """Returns what ops of other blocks read: forward ones may be repeated from it.

        Args:
            start: Readers before this op don't count.
            without: Values that are left out.
        """
        tape = self.tape
        return tuple(
            (value, -1)
            for at in self.forward
            for value in tape.makes[at]
            if value not in without
            and any(r >= start and r not in self.places for r in tape.readers[value])
        )

    @property
    def end(self) -> int:
        """Where the blocks' backward ops end."""
        return self.backward[-1] if self.backward else len(self.tape.ops)

    def on_tape(self, way: Way) -> Way:
        """Returns a way in which ops and values are those of the tape.

        Args:
            way: Ops by their place among these, values by theirs: those made, then those entering.
        """
        repeated, anew = (frozenset(self.forward[place] for place in part) for part in way[:2])
        return Way(repeated, anew, frozenset(self._values[number] for number in way.offloaded))

    def with_entering(self, way: Way) -> Way:
        """Returns a way in which what enters the blocks leaves behind them, too."""
        first = len(self._values) - len(self.entering)
        return way._replace(offloaded=way.offloaded | frozenset(range(first, len(self._values))))

    def key(self) -> Hashable:
        """Returns what the memory that moves within depends on; equal layers have equal keys."""
        tape = self.tape
        values: dict[int, int] = {}
        pieces: dict[int, int] = {}
        found: list[Hashable] = []

        def counted(read: Sequence[int]) -> tuple[int, ...]:
            return tuple(values[value] for value in read if value in values)

        for at in self.forward:
            reads = counted(tape.reads[at]), counted(tape.again_reads[at])
            for value in tape.makes[at]:
                values[value] = len(values)
            taken = tape.takes[at]
            pieces.update((piece, len(pieces) + place) for place, piece in enumerate(taken))
            lie = tuple(
                tuple(pieces.get(piece, -1) for piece in tape.places[value])
                for value in tape.makes[at]
            )
            sizes = tuple((tape.nbytes[piece], tape.stays[piece]) for piece in taken)
            twin = (at, self.batch) in tape.twins
            wished = at in tape.wished.repeated
            costs = tape.besides[at], tape.again_seconds[at]
            found.append((reads, lie, sizes, costs, twin, wished))
        late = tuple(counted(tape.reads[at]) for at in self.backward)
        rest = tuple(counted([v for v, _ in self.read_elsewhere(at)]) for at in (0, self.end))
        return tuple(found), late, rest, tuple(self._key_of_transfers())

    def _key_of_transfers(self) -> list[Hashable]:
        tape = self.tape
        entering = {value: number for number, value in enumerate(self.entering)}
        found: list[Hashable] = []
        for value in self._values if tape.offered else ():
            leaving = tape.offered.get(value)
            if leaving is not None:
                ends = (self.places.get(at, -1) for at in (leaving.behind, leaving.before))
                found.append((*ends, leaving.seconds, tape.value_bytes[value]))
            else:
                found.append(value in tape.wished.offloaded)
        for at in self.places if entering else ():
            read = (*tape.reads[at], -1, *tape.again_reads[at])
            found.append(tuple(entering.get(value, -1) for value in read))
        ends = (any(r >= self.end for r in tape.readers[value]) for value in entering)
        return [*found, *ends]


class Profiler:
    """Profiles the blocks of a microbatch.

    Args:
        tape: The tape.
        batch: The microbatch.
    """

    def __init__(self, tape: Tape, batch: int) -> None:
        self.tape = tape
        others = [
            Step(step.op, -1, step.reads, ())
            if tape.early[step.op] and tape.batches[step.op] == batch
            else step
            for step in replay(tape, NOTHING, range(len(tape.ops)))
            if step.copy < 0 or step.batch != batch
        ]
        live = moving_bytes(tape, others)
        ran = [
            (step.op, nbytes) for step, nbytes in zip(others, live, strict=True) if step.copy < 0
        ]
        moving = np.array([nbytes for _, nbytes in sorted(ran)], dtype=np.int64)
        self.during = np.array(tape.during, dtype=np.int64) + moving
        self.before = np.array(tape.before[:-1], dtype=np.int64) + moving
        self._known: dict[tuple[Hashable, Way], _Moving] = {}

    def profiles(self, span: Span, ways: Sequence[Way]) -> list[Profile]:
        """Returns what blocks take in each way to run them.

        Args:
            span: The blocks.
            ways: Ops and values as `Span.on_tape` has them.
        """
        key = span.key()
        found = []
        for way in ways:
            if (key, way) not in self._known:
                self._known[key, way] = _moving(span, way)
            moving = self._known[key, way]
            needed = max(
                int((moving.during + self.during[span.ops]).max()),
                int((moving.before + self.before[span.ops]).max()),
            )
            found.append(Profile(span.on_tape(way), moving.seconds, moving.saved, needed))
        return found


def _moving(span: Span, way: Way) -> _Moving:
    tape = span.tape
    repeated = span.on_tape(way)
    # Before the blocks' turn in the backward pass, and behind it.
    away = repeated.offloaded
    turn = Step(span.forward[-1], -1, span.read_elsewhere(0, away), ())
    backward = [
        step if step.copy >= 0 else Step(step.op, -1, step.reads, ())
        for step in replay(tape, repeated, span.backward)
        if step.copy >= 0 or step.op in span.places
    ]
    back = [made for step in backward if step.moves >= 0 for made in step.makes]
    read_later = [held for held in back if tape.readers[held[0]][-1] >= span.end]
    end = Step(span.forward[-1], -1, (*span.read_elsewhere(span.end, away), *read_later), ())
    steps = [*replay(tape, repeated, span.forward), turn, *backward, end]
    live = _without_entering(span, steps, moving_bytes(tape, steps))
    during = np.full(len(span.ops), NONE, dtype=np.int64)
    before = np.full(len(span.ops), NONE, dtype=np.int64)
    waiting = NONE
    for step, nbytes in zip(steps, live, strict=True):
        if step is turn or step is end:
            continue
        if step.copy >= 0:
            waiting = max(waiting, nbytes)
            continue
        place = span.places[step.op]
        during[place] = max(during[place], nbytes)
        before[place] = max(before[place], waiting)
        waiting = NONE
    seconds = sum(step.seconds(tape) for step in steps)
    return _Moving(seconds, live[steps.index(turn)], during, before)


def _without_entering(span: Span, steps: Sequence[Step], live: Sequence[int]) -> list[int]:
    """Returns bytes less those of values of blocks before from where these have left."""
    found, gone = list(live), 0
    for at, step in enumerate(steps):
        found[at] -= gone
        if step.moves in span.entering and not step.makes:
            gone += span.tape.value_bytes[step.moves]
    return found
