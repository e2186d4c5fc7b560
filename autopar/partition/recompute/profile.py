"""What a way costs: seconds, and the bytes that blocks need on top of all that is around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.partition.recompute.blocks import Blocks
from autopar.partition.recompute.cut import Way
from autopar.partition.recompute.live import moving_bytes
from autopar.partition.recompute.replay import Held, Step, replay
from autopar.partition.recompute.tape import Tape


@dataclass(frozen=True, slots=True)
class Profile:
    """What consecutive blocks take if some of their ops are repeated.

    Attributes:
        repeated: The ops.
        seconds: Of the copies.
        saved: Bytes that lie between forward and backward pass.
        needed: The most bytes while the blocks' forward or backward ops run, all others' but those
            of earlier blocks' saved values included.
    """

    repeated: Way
    seconds: float
    saved: int
    needed: int


class Surroundings:
    """The bytes around a microbatch's forward values, over time.

    Args:
        tape: The tape.
        batch: The microbatch.
    """

    def __init__(self, tape: Tape, batch: int) -> None:
        self.tape = tape
        others = [
            step if tape.batches[step.op] != batch else Step(step.op, -1, step.reads, ())
            for step in replay(tape, (), range(len(tape.ops)))
        ]
        moving = moving_bytes(tape, others)
        self.during = [sum(both) for both in zip(tape.during, moving, strict=True)]
        self.before = [sum(both) for both in zip(tape.before, moving, strict=False)]

    def profile(self, blocks: Blocks, first: int, last: int, way: Way) -> Profile:
        """Returns what blocks take.

        Args:
            blocks: All blocks.
            first: The first of them.
            last: The last one.
            way: The ops to repeat, by their place among the blocks' forward ops.
        """
        tape = self.tape
        forward = [at for part in blocks.forward[first : last + 1] for at in part]
        backward = [at for part in reversed(blocks.backward[first : last + 1]) for at in part]
        repeated = frozenset(forward[place] for place in way)
        steps = [
            *replay(tape, repeated, forward),
            Step(forward[-1], -1, (), ()),
            *_copies_only(replay(tape, repeated, backward)),
            Step(forward[-1], -1, self._crossing(forward), ()),
        ]
        live = moving_bytes(tape, steps)
        needed = 0
        waiting = 0
        for step, nbytes in zip(steps, live, strict=True):
            if step.batch >= 0:
                waiting = max(waiting, nbytes)
                continue
            around = self.during[step.op]
            needed = max(needed, nbytes + around, waiting + self.before[step.op] if waiting else 0)
            waiting = 0
        seconds = sum(tape.seconds[step.op] for step in steps if step.batch >= 0)
        return Profile(repeated, seconds, live[len(forward)], needed)

    def _crossing(self, forward: Sequence[int]) -> tuple[Held, ...]:
        """Returns what later forward ops read, from which these start if they are repeated."""
        tape, inside = self.tape, frozenset(forward)
        return tuple(
            (value, -1)
            for at in forward
            for value in tape.makes[at]
            if any(tape.early[reader] and reader not in inside for reader in tape.readers[value])
        )


def _copies_only(steps: Sequence[Step]) -> list[Step]:
    """Returns the steps without what they make, but for copies."""
    return [step if step.batch >= 0 else Step(step.op, -1, step.reads, ()) for step in steps]
