"""The replay: the order in which a tape is run if some forward ops are repeated for the backward.

A copy stands right before the first backward op that reads it, behind the copies that it reads
itself. What the backward pass of a microbatch computes anyway, as views and gathers of parameters,
is computed earlier instead of twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from autopar.partition.recompute.tape import Tape

Held = tuple[int, int]
"""A value, and the microbatch of the copy that makes it; -1 for the value itself."""


@dataclass(frozen=True, slots=True)
class Step:
    """An op that is run.

    Attributes:
        op: Its position on the tape.
        batch: The microbatch for whose backward pass it is a copy; -1 if it is no copy.
        reads: What it reads.
        makes: What it makes.
    """

    op: int
    batch: int
    reads: tuple[Held, ...]
    makes: tuple[Held, ...]


def replay(tape: Tape, repeated: Collection[int], ops: Iterable[int]) -> list[Step]:
    """Returns the steps in which ops of a tape are run.

    Args:
        tape: The tape.
        repeated: The forward ops whose results the backward pass reads from copies.
        ops: Positions of the ops, in order.
    """
    return _Replay(tape, repeated).run(ops)


class _Replay:
    def __init__(self, tape: Tape, repeated: Collection[int]) -> None:
        self.tape = tape
        self.repeated = repeated
        self.steps: list[Step] = []
        self.moved: set[int] = set()
        self.copied: set[tuple[int, int]] = set()

    def run(self, ops: Iterable[int]) -> list[Step]:
        for at in ops:
            if at not in self.moved:
                self._add(at)
        return self.steps

    def _add(self, at: int) -> None:
        """Adds an op of the tape, behind the copies that it reads."""
        tape = self.tape
        batch = tape.batches[at] if tape.late[at] and self.repeated else -1
        reads = tape.reads[at]
        if batch >= 0:
            self._demand(reads, batch)
        makes = tuple((value, -1) for value in tape.makes[at])
        self.steps.append(Step(at, -1, self._held(reads, batch), makes))

    def _demand(self, values: Iterable[int], batch: int) -> None:
        """Adds the copies that make some values, operands first."""
        stack = [(maker, False) for maker in self._missing(values, batch)]
        while stack:
            at, ready = stack.pop()
            if (at, batch) in self.copied:
                continue
            reads = self.tape.again_reads[at]
            if not ready:
                stack.append((at, True))
                stack.extend((maker, False) for maker in self._missing(reads, batch))
                continue
            self.copied.add((at, batch))
            twin = self.tape.twins.get((at, batch))
            if twin is not None:
                self.moved.add(twin)
                makes = tuple((value, -1) for value in self.tape.makes[twin])
                self.steps.append(Step(twin, -1, self._held(reads, batch), makes))
                continue
            makes = tuple((value, batch) for value in self.tape.again_makes[at])
            self.steps.append(Step(at, batch, self._held(reads, batch), makes))

    def _missing(self, values: Iterable[int], batch: int) -> Iterable[int]:
        for value in reversed(list(values)):
            maker = self.tape.makers[value]
            if maker in self.repeated and (maker, batch) not in self.copied:
                yield maker

    def _held(self, values: Sequence[int], batch: int) -> tuple[Held, ...]:
        """Returns where a backward op of a microbatch, or a copy for it, finds values."""
        if batch < 0:
            return tuple((value, -1) for value in values)
        return tuple(self._one(value, batch) for value in values)

    def _one(self, value: int, batch: int) -> Held:
        maker = self.tape.makers[value]
        if maker not in self.repeated:
            return value, -1
        twin = self.tape.twins.get((maker, batch))
        if twin is None:
            return value, batch
        position = self.tape.makes[maker].index(value)
        return self.tape.makes[twin][position], -1


def live_bytes(tape: Tape, steps: Sequence[Step]) -> list[int]:
    """Returns the bytes that are held while each step runs, without those of inputs.

    Memory is freed behind the last step that reads what is in it.
    """
    homes: dict[Held, Held] = {}
    begin: dict[Held, int] = {}
    last: dict[Held, int] = {}
    for at, step in enumerate(steps):
        for held in step.reads:
            home = homes.get(held)
            if home is not None:
                last[home] = at
        for held in step.makes:
            home = _home(tape, step, held, homes)
            if home is not None:
                homes[held] = home
                begin.setdefault(home, at)
                last[home] = at
    change = [0] * (len(steps) + 1)
    for home, at in begin.items():
        nbytes = tape.nbytes[home[0]]
        change[at] += nbytes
        if home[1] >= 0 or home[0] not in tape.kept:
            change[last[home] + 1] -= nbytes
    found, total = [], 0
    for each in change[:-1]:
        total += each
        found.append(total)
    return found


def _home(tape: Tape, step: Step, made: Held, homes: dict[Held, Held]) -> Held | None:
    """Returns in whose memory a result is; None for that of inputs."""
    home = tape.homes[made[0]]
    if home == made[0]:
        return made
    for held in step.reads:
        if tape.homes[held[0]] == home:
            return homes.get(held)
    return None
