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
