"""What a way costs: seconds, and the bytes that blocks need on top of all that is around them.

Repeated layers are looked at once: what moves within them is the same, and only what is around
them differs. Backward ops that touch nothing of the blocks are passed over, as those that
communicate gradients are: in between, what moves stays as it was. So the plans of a program have
most layers in common, however they split parameters.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from autopar.partition.recompute.blocks import Blocks
from autopar.partition.recompute.live import Moving, moving_bytes
from autopar.partition.recompute.replay import Step, ValueCopy, replay
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
class Within:
    """What blocks take wherever they are.

    Attributes:
        seconds: Of the copies.
        saved: Bytes that lie between forward and backward pass.
        during: Bytes of the blocks' values while each op runs that touches them, and then behind
            each of these.
        before: The same while the copies just before each of these ops run; `NONE` if there are
            none.
    """

    seconds: float
    saved: int
    during: Bytes
    before: Bytes


Known = dict[tuple[Hashable, Way], Within]
"""What blocks take, by what it depends on; of all programs that are looked at on a cluster."""


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
        self.forward = [op for part in blocks.forward[first:end] for op in part]
        self.backward = [op for part in reversed(blocks.backward[first:end]) for op in part]
        self.inside = frozenset((*self.forward, *self.backward))
        self.entering = self._entering()
        made = [value for op in self.forward for value in tape.makes[op]]
        self._values = [*made, *self.entering]
        self.touching = [*self.forward, *filter(self._touchers().__contains__, self.backward)]
        self.places = {op: place for place, op in enumerate(self.touching)}
        self.ops = np.array([*self.forward, *self.backward], dtype=np.int64)
        self.states = np.array(self._states(), dtype=np.int64)

    def _touchers(self) -> frozenset[int]:
        """Returns the backward ops on which what moves in the blocks depends."""
        tape = self.tape
        if tape.user_choices.repeated or tape.user_choices.offloaded:
            return frozenset(self.backward)  # What users want of other blocks may be read here.
        touching = {op for value in self._values for op in tape.readers[value]}
        touching.update(tape.twins.get((op, self.batch), -1) for op in self.forward)
        taken = {piece for op in self.forward for piece in tape.takes[op]}
        touching.update(op for op, pieces in tape.ends.items() if not taken.isdisjoint(pieces))
        return frozenset(touching)

    def _states(self) -> list[int]:
        """Returns for each op where `Within.during` has its bytes."""
        states, state = [], 0
        for op in (*self.forward, *self.backward):
            state = self.places.get(op, state)
            states.append(state if op in self.places else state + len(self.touching))
        return states

    def _entering(self) -> list[int]:
        """Returns the values that may leave here, but are of blocks before."""
        tape, forward, backward = self.tape, frozenset(self.forward), frozenset(self.backward)
        return [
            value
            for value, candidate in tape.free_candidates.items()
            if candidate.behind in forward
            and candidate.before in backward
            and tape.makers[value] not in forward
            and tape.batches[tape.makers[value]] == self.batch
        ]

    def read_elsewhere(
        self, start: int, without: frozenset[int] = frozenset()
    ) -> tuple[ValueCopy, ...]:
        """Returns what ops of other blocks read: forward ones may be repeated from it.

        Args:
            start: Readers before this op don't count.
            without: Values that are left out.
        """
        tape = self.tape
        return tuple(
            (value, -1)
            for op in self.forward
            for value in tape.makes[op]
            if value not in without
            and any(r >= start and r not in self.inside for r in tape.readers[value])
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
        keys: list[Hashable] = []

        def counted(read: Sequence[int]) -> tuple[int, ...]:
            return tuple(values[value] for value in read if value in values)

        for op in self.forward:
            reads = counted(tape.reads[op]), counted(tape.again_reads[op])
            for value in tape.makes[op]:
                values[value] = len(values)
            taken = tape.takes[op]
            pieces.update((piece, len(pieces) + place) for place, piece in enumerate(taken))
            lie = tuple(
                tuple(pieces.get(piece, -1) for piece in tape.places[value])
                for value in tape.makes[op]
            )
            sizes = tuple((tape.nbytes[piece], tape.stays[piece]) for piece in taken)
            twin = tape.twins.get((op, self.batch))
            turn = twin is not None, -1 if twin is None else self.places.get(twin, -1)
            costs = tape.besides[op], tape.again_seconds[op]
            keys.append((reads, lie, sizes, costs, turn, op in tape.user_choices.repeated))
        late = tuple(
            (counted(tape.reads[op]), *(pieces.get(piece, -1) for piece in tape.ends.get(op, ())))
            for op in self.touching[len(self.forward) :]
        )
        rest = tuple(counted([v for v, _ in self.read_elsewhere(start)]) for start in (0, self.end))
        return tuple(keys), late, rest, tuple(self._key_of_transfers())

    def _key_of_transfers(self) -> list[Hashable]:
        tape = self.tape
        entering = {value: number for number, value in enumerate(self.entering)}
        keys: list[Hashable] = []
        for value in self._values if tape.free_candidates else ():
            candidate = tape.free_candidates.get(value)
            if candidate is not None:
                inside = candidate.before in self.inside
                behind = self.places.get(candidate.behind, -1)
                keys.append((behind, inside, candidate.seconds, tape.value_bytes[value]))
            else:
                keys.append(value in tape.user_choices.offloaded)
        for op in self.touching if entering else ():
            read = (*tape.reads[op], -1, *tape.again_reads[op])
            keys.append(tuple(entering.get(v, -1) for v in read if v in entering or v < 0))
        ends = (any(r >= self.end for r in tape.readers[value]) for value in entering)
        return [*keys, *ends]


class Profiler:
    """Profiles the blocks of a microbatch.

    Args:
        tape: The tape.
        batch: The microbatch.
        known: What is known of blocks already.
    """

    def __init__(self, tape: Tape, batch: int, known: Known) -> None:
        self.tape = tape
        others = [
            Step(step.op, -1, step.reads, ())
            if tape.early[step.op] and tape.batches[step.op] == batch
            else step
            for step in replay(tape, NOTHING, range(len(tape.ops)))
            if step.copy < 0 or step.batch != batch
        ]
        live = moving_bytes(tape, others).during
        ran = [
            (step.op, nbytes) for step, nbytes in zip(others, live, strict=True) if step.copy < 0
        ]
        moving = np.array([nbytes for _, nbytes in sorted(ran)], dtype=np.int64)
        self.during = np.array(tape.during, dtype=np.int64) + moving
        self.before = np.array(tape.before[:-1], dtype=np.int64) + moving
        # What users want is done beyond the blocks, too.
        has_choices = tape.user_choices.repeated or tape.user_choices.offloaded
        self._known: Known = {} if has_choices else known

    def profiles(self, span: Span, ways: Sequence[Way]) -> list[Profile]:
        """Returns what blocks take in each way to run them.

        Args:
            span: The blocks.
            ways: Ops and values as `Span.on_tape` has them.
        """
        key = span.key()
        during, before = self.during[span.ops], self.before[span.touching]
        profiles = []
        for way in ways:
            if (key, way) not in self._known:
                self._known[key, way] = _within(span, way)
            within = self._known[key, way]
            needed = max(
                int((within.during[span.states] + during).max()),
                int((within.before + before).max()),
            )
            profiles.append(Profile(span.on_tape(way), within.seconds, within.saved, needed))
        return profiles


def _within(span: Span, way: Way) -> Within:
    tape, first, count = span.tape, len(span.forward), len(span.touching)
    steps, turn = _steps(span, span.on_tape(way))
    live = _without_entering(span, steps, moving_bytes(tape, steps))
    during = np.full(2 * count, NONE, dtype=np.int64)
    before = np.full(count, NONE, dtype=np.int64)
    waiting, ran = NONE, [turn] * count
    for index, step in enumerate(steps[:-1]):
        if step.copy >= 0:
            waiting = max(waiting, live.during[index])
        elif index != turn:
            place = span.places[step.op]
            during[place], before[place], ran[place] = live.during[index], waiting, index
            waiting = NONE
    # What is computed earlier than by its turn leaves all as it is in its turn.
    behind = accumulate(ran[first:], max, initial=turn)
    during[count + first - 1 :] = [live.behind[index] for index in behind]
    seconds = sum(step.added_seconds(tape) for step in steps)
    return Within(seconds, live.during[turn], during, before)


def _steps(span: Span, way: Way) -> tuple[list[Step], int]:
    """Returns the steps of blocks, and the place of one that reads what others need in between.

    That is before the blocks' turn in the backward pass; a last one reads what is needed behind it.
    """
    tape, last, away = span.tape, span.forward[-1], way.offloaded
    forward = replay(tape, way, span.forward)
    backward = [
        step if step.copy >= 0 else Step(step.op, -1, step.reads, ())
        for step in replay(tape, way, span.touching[len(span.forward) :])
        if step.copy >= 0 or step.op in span.places
    ]
    back = [made for step in backward if step.moves >= 0 for made in step.makes]
    read_later = [held for held in back if tape.readers[held[0]][-1] >= span.end]
    turn = Step(last, -1, span.read_elsewhere(0, away), ())
    end = Step(last, -1, (*span.read_elsewhere(span.end, away), *read_later), ())
    return [*forward, turn, *backward, end], len(forward)


def _without_entering(span: Span, steps: Sequence[Step], live: Moving) -> Moving:
    """Returns bytes less those of values of blocks before from where these have left."""
    during, behind, gone = list(live.during), list(live.behind), 0
    for index, step in enumerate(steps):
        during[index] -= gone
        if step.moves in span.entering and not step.makes:
            gone += span.tape.value_bytes[step.moves]
        behind[index] -= gone
    return Moving(during, behind)
