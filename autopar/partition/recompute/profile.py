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
from autopar.partition.recompute.replay import NOTHING, Held, Step, Way, replay
from autopar.partition.recompute.tape import Tape

Bytes = NDArray[np.int64]


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
        before: The same while the copies just before each op run; 0 if there are none.
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

    def read_elsewhere(self, start: int) -> tuple[Held, ...]:
        """Returns what ops of other blocks read: forward ones may be repeated from it.

        Args:
            start: Readers before this op don't count.
        """
        tape = self.tape
        return tuple(
            (value, -1)
            for at in self.forward
            for value in tape.makes[at]
            if any(r >= start and r not in self.places for r in tape.readers[value])
        )

    @property
    def end(self) -> int:
        """Where the blocks' backward ops end."""
        return self.backward[-1] if self.backward else len(self.tape.ops)

    def on_tape(self, way: Way) -> Way:
        """Returns a way with positions on the tape instead of places among these ops."""
        return Way(*(frozenset(self.forward[place] for place in part) for part in way))

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
            found.append((reads, lie, sizes, tape.besides[at], tape.seconds[at], twin))
        found += [counted(tape.reads[at]) for at in self.backward]
        found += [counted([v for v, _ in self.read_elsewhere(at)]) for at in (0, self.end)]
        return tuple(found)


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
        ]
        moving = np.array(moving_bytes(tape, others), dtype=np.int64)
        self.during = np.array(tape.during, dtype=np.int64) + moving
        self.before = np.array(tape.before[:-1], dtype=np.int64) + moving
        self._known: dict[tuple[Hashable, Way], _Moving] = {}

    def profiles(self, span: Span, ways: Sequence[Way]) -> list[Profile]:
        """Returns what blocks take in each way to run them.

        Args:
            span: The blocks.
            ways: The ops to repeat, by their place among the blocks' forward ops.
        """
        key = span.key()
        found = []
        for way in ways:
            if (key, way) not in self._known:
                self._known[key, way] = _moving(span, way)
            moving = self._known[key, way]
            needed = max(
                int((moving.during + self.during[span.ops]).max()),
                int(np.where(moving.before, moving.before + self.before[span.ops], 0).max()),
            )
            found.append(Profile(span.on_tape(way), moving.seconds, moving.saved, needed))
        return found


def _moving(span: Span, way: Way) -> _Moving:
    tape = span.tape
    repeated = span.on_tape(way)
    # Before the blocks' turn in the backward pass, and behind it.
    turn, end = (
        Step(span.forward[-1], -1, span.read_elsewhere(start), ()) for start in (0, span.end)
    )
    backward = [
        step if step.copy >= 0 else Step(step.op, -1, step.reads, ())
        for step in replay(tape, repeated, span.backward)
        if step.copy >= 0 or step.op in span.places
    ]
    steps = [*replay(tape, repeated, span.forward), turn, *backward, end]
    live = moving_bytes(tape, steps)
    during = np.zeros(len(span.ops), dtype=np.int64)
    before = np.zeros(len(span.ops), dtype=np.int64)
    waiting = 0
    for step, nbytes in zip(steps, live, strict=True):
        if step is turn or step is end:
            continue
        if step.copy >= 0:
            waiting = max(waiting, nbytes)
            continue
        place = span.places[step.op]
        during[place] = max(during[place], nbytes)
        before[place] = max(before[place], waiting)
        waiting = 0
    seconds = sum(tape.seconds[step.op] for step in steps if step.copy >= 0)
    return _Moving(seconds, live[len(span.forward)], during, before)
