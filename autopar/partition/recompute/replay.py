"""The replay: the order in which a tape is run if some forward ops are repeated for the backward.

A copy stands right before the first backward op that reads it, behind the copies that it reads
itself. What the backward pass of a microbatch computes anyway, as views and gathers of parameters,
is computed earlier instead of twice. Copies stay until they are read last, but for those that are
made *anew* for every backward op, which pays where they are cheap and large.

What is *offloaded* leaves for the host's memory behind the last forward op that reads it, and comes
back where a copy would be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autopar.partition.recompute.tape import Tape
from autopar.partition.recompute.way import Way

ValueCopy = tuple[int, int]
"""A value, and the number of the copy that makes it; -1 for the value itself."""


@dataclass(frozen=True, slots=True)
class Step:
    """An op that is run.

    Attributes:
        op: Its position on the tape; of a transfer, that of the op that made the value.
        copy: The number of the copy that it is; -1 if it is none.
        batch: The microbatch for whose backward pass it is a copy.
        reads: What it reads.
        makes: What it makes.
        moves: The value that it brings out or, if it makes it, back; -1 if it computes.
    """

    op: int
    copy: int
    reads: tuple[ValueCopy, ...]
    makes: tuple[ValueCopy, ...]
    batch: int = 0
    moves: int = -1

    def added_seconds(self, tape: Tape) -> float:
        """Returns what this adds to a step if it is a copy or a transfer, else 0."""
        if self.moves >= 0:
            return tape.offload_candidates[self.moves].seconds / 2
        return tape.again_seconds[self.op] if self.copy >= 0 else 0.0


def replay(tape: Tape, way: Way, ops: Iterable[int]) -> list[Step]:
    """Returns the steps in which ops of a tape are run.

    Args:
        tape: The tape.
        way: What is computed again.
        ops: Positions of the ops, in order.
    """
    steps = _Replay(tape, way).replay(ops)
    if not any(tape.late[step.op] for step in steps if step.copy < 0):
        return steps
    # What nobody brings back, as where a view of it is read that is kept, needn't leave.
    back = {step.moves for step in steps if step.makes}
    return [step for step in steps if step.moves < 0 or step.moves in back]


class _Replay:
    def __init__(self, tape: Tape, way: Way) -> None:
        self.tape = tape
        self.way = way = _with_user_choices(tape, way)
        self.steps: list[Step] = []
        self.done: set[int] = set()
        self.copies: dict[tuple[int, int], int] = {}
        self.passing: list[tuple[int, int]] = []
        self.fetched: dict[int, int] = {}
        self.offloads: dict[int, list[int]] = {}
        for value in sorted(way.offloaded):
            self.offloads.setdefault(tape.offload_candidates[value].behind, []).append(value)

    def replay(self, ops: Iterable[int]) -> list[Step]:
        for op in ops:
            if op not in self.done:
                self._add(op)
        return self.steps

    def _add(self, op: int) -> None:
        """Adds an op of the tape, behind the copies that it reads."""
        tape = self.tape
        reads = tape.reads[op]
        if tape.late[op] and (self.way.repeated or self.way.offloaded):
            for copy in self.passing:
                del self.copies[copy]
            self.passing.clear()
            self._demand(reads, tape.batches[op])
            operands = self._operands(reads, tape.batches[op])
        else:
            operands = tuple((value, -1) for value in reads)
        self.done.add(op)
        self.steps.append(Step(op, -1, operands, self._made(op)))
        for value in self.offloads.get(op, ()):
            self._transfer(value, ((value, -1),))

    def _transfer(self, value: int, reads: tuple[ValueCopy, ...]) -> None:
        """Adds a transfer, out of what is read or back."""
        number, maker = len(self.steps), self.tape.makers[value]
        makes = () if reads else ((value, number),)
        self.steps.append(Step(maker, number, reads, makes, self.tape.batches[maker], value))
        if makes:
            self.fetched[value] = number

    def _fetch(self, values: Iterable[int]) -> None:
        """Adds the transfers that bring some values back."""
        for value in values:
            if value in self.way.offloaded and value not in self.fetched:
                self._transfer(value, ())

    def _made(self, op: int) -> tuple[ValueCopy, ...]:
        return tuple((value, -1) for value in self.tape.makes[op])

    def _demand(self, values: Sequence[int], batch: int) -> None:
        """Adds the copies that make some values, operands first."""
        self._fetch(values)
        stack = [(maker, False) for maker in self._missing(values, batch)]
        while stack:
            op, ready = stack.pop()
            if (op, batch) in self.copies:
                continue
            reads = self.tape.again_reads[op]
            if ready:
                self._fetch(reads)
                self._copy(op, batch, self._operands(reads, batch))
            else:
                stack.append((op, True))
                stack.extend((maker, False) for maker in self._missing(reads, batch))

    def _copy(self, op: int, batch: int, reads: tuple[ValueCopy, ...]) -> None:
        number = self.copies[op, batch] = len(self.steps)
        twin = self.tape.twins.get((op, batch))
        if twin is not None:
            if twin not in self.done:
                self.done.add(twin)
                self.steps.append(Step(twin, -1, reads, self._made(twin)))
            return
        makes = tuple((value, number) for value in self.tape.again_makes[op])
        self.steps.append(Step(op, number, reads, makes, batch))
        if op in self.way.anew:
            self.passing.append((op, batch))

    def _missing(self, values: Iterable[int], batch: int) -> Iterable[int]:
        for value in reversed(list(values)):
            maker = self.tape.makers[value]
            again = maker in self.way.repeated and value not in self.way.offloaded
            if again and (maker, batch) not in self.copies:
                yield maker

    def _operands(self, values: Iterable[int], batch: int) -> tuple[ValueCopy, ...]:
        """Returns where a backward op of a microbatch, or a copy for it, finds values."""
        return tuple(self._operand(value, batch) for value in values)

    def _operand(self, value: int, batch: int) -> ValueCopy:
        if value in self.way.offloaded:
            return value, self.fetched[value]
        maker = self.tape.makers[value]
        if maker not in self.way.repeated:
            return value, -1
        twin = self.tape.twins.get((maker, batch))
        if twin is None:
            return value, self.copies[maker, batch]
        position = self.tape.makes[maker].index(value)
        return self.tape.makes[twin][position], -1


def _with_user_choices(tape: Tape, way: Way) -> Way:
    """Returns a way that does what the user wants, too."""
    chosen = tape.user_choices
    rest = (value for value in way.offloaded if tape.makers[value] not in chosen.repeated)
    return Way(way.repeated | chosen.repeated, way.anew, chosen.offloaded.union(rest))
