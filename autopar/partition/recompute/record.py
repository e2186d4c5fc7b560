"""The record: a rank's program as numbers, so that ways to run it are compared in milliseconds.

Ops, values and pieces of memory are counted. What ops cost and which memory they take is as the
evaluator says of the program as it is; the record knows what of that moves with the order of ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from autopar.cost import Cluster, Lifetimes, kinds_of_ranks
from autopar.ir.expr.expression import planned, prod
from autopar.ir.program import Function, Op, Program
from autopar.partition.recompute.shared import Shared


@dataclass(frozen=True)
class Record:
    """The ops of `main`, by their position.

    Attributes:
        program: The program.
        memory: The memory that it takes on the first rank.
        seconds: Of each op.
        cheap: Whether each op computes no product and doesn't communicate.
        reads: The values that each op reads, each once.
        makes: The values that each op makes.
        again: The op that repeats each op, None where none may.
        again_seconds: Of these.
        again_reads: The values that they read.
        again_makes: The values whose copies they make.
        early: Whether each op is of a forward pass, and before the backward pass of its microbatch.
        late: Whether each op is of a backward pass.
        batches: The microbatch of each op.
        names: Of the values.
        makers: The op that makes each value; -1 for inputs.
        places: The pieces of memory in which each value lies.
        cluster: The hardware.
        shared: What ranks of other kinds decide, or nobody.
    """

    program: Program
    memory: Lifetimes
    seconds: Sequence[float]
    cheap: Sequence[bool]
    reads: Sequence[tuple[int, ...]]
    makes: Sequence[tuple[int, ...]]
    again: Sequence[Op | None]
    again_seconds: Sequence[float]
    again_reads: Sequence[tuple[int, ...]]
    again_makes: Sequence[tuple[int, ...]]
    early: Sequence[bool]
    late: Sequence[bool]
    batches: Sequence[int]
    names: Sequence[str]
    makers: Sequence[int]
    places: Sequence[tuple[int, ...]]
    cluster: Cluster
    shared: Shared

    @property
    def function(self) -> Function:
        """The function."""
        return self.program.main

    @cached_property
    def kinds(self) -> Sequence[Mapping[str, int]]:
        """The coordinates of a rank of each kind."""
        return kinds_of_ranks(self.program)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The ops."""
        return self.function.ops

    @cached_property
    def readers(self) -> Sequence[Sequence[int]]:
        """The ops that read each value."""
        readers: list[list[int]] = [[] for _ in self.names]
        for op, values in enumerate(self.reads):
            for value in values:
                readers[value].append(op)
        return readers

    @cached_property
    def twins(self) -> Mapping[tuple[int, int], int]:
        """By forward op and microbatch, the backward op that computes the same by itself."""
        late: dict[tuple[object, ...], int] = {}
        for index, op in enumerate(self.ops):
            if self.late[index]:
                late.setdefault((op.kind, op.args, op.microbatch), index)
        batches = sorted(set(self.batches))
        return {
            (index, batch): late[op.kind, op.args, batch]
            for index, op in enumerate(self.ops)
            for batch in batches
            if self.early[index] and (op.kind, op.args, batch) in late
        }

    @cached_property
    def nbytes(self) -> Sequence[int]:
        """Bytes of each piece of memory."""
        return [buffer.nbytes for buffer in self.memory.buffers]

    @cached_property
    def stays(self) -> Sequence[bool]:
        """Whether each piece is there from the beginning or to the end."""
        end = len(self.ops)
        return [buffer.first < 0 or buffer.last >= end for buffer in self.memory.buffers]

    @cached_property
    def takes(self) -> Sequence[Sequence[int]]:
        """The pieces that each op takes, of those that come and go with the order of ops.

        These are the forward ops' and those of backward ops that may move ahead.
        """
        moving = set(self.twins.values())
        makers = {name: index for index, op in enumerate(self.ops) for name in op.results}
        takes: list[list[int]] = [[] for _ in self.ops]
        for piece, buffer in enumerate(self.memory.buffers):
            # What a started collective makes is taken by who waits for it, but moves with it.
            index = min(buffer.first, makers.get(buffer.name, buffer.first))
            if index >= 0 and (self.early[index] or index in moving):
                takes[index].append(piece)
        return takes

    @cached_property
    def ends(self) -> Mapping[int, Sequence[int]]:
        """By op, the pieces that are there until then though no op reads them.

        So is new content until it is written over the old one.
        """
        last: dict[int, int] = {}
        for op, values in enumerate(self.reads):
            last.update((piece, op) for value in values for piece in self.places[value])
        ends: dict[int, list[int]] = {}
        for pieces in self.takes:
            for piece in pieces:
                end = self.memory.buffers[piece].last
                if not self.stays[piece] and end > last.get(piece, -1):
                    ends.setdefault(end, []).append(piece)
        return ends

    @cached_property
    def value_bytes(self) -> Sequence[int]:
        """Bytes of each value's elements, on the rank with the largest blocks."""
        values = (self.function.values[name] for name in self.names)
        return [planned(prod(each.shape)) * each.itemsize for each in values]

    @cached_property
    def besides(self) -> Sequence[int]:
        """Bytes that each op takes while it runs."""
        both = self.memory.temporary_bytes, self.memory.communication_bytes
        return list(map(sum, zip(*both, strict=True)))

    @cached_property
    def waits(self) -> Sequence[int]:
        """Bytes that each op needs on top of what moves as it waits for collectives.

        What it takes itself isn't there yet.
        """
        waits = list(self.memory.awaited_bytes)
        for piece in (piece for pieces in self.takes for piece in pieces):
            waits[self.memory.buffers[piece].first] -= self.nbytes[piece]
        return waits

    @cached_property
    def before(self) -> Sequence[int]:
        """Bytes of pieces that don't move, just before each op."""
        change = [0] * (len(self.ops) + 2)
        moving = {piece for pieces in self.takes for piece in pieces}
        for piece, buffer in enumerate(self.memory.buffers):
            if piece not in moving:
                change[buffer.first + 1] += buffer.nbytes
                change[buffer.last + 1] -= buffer.nbytes
        return list(accumulate(change))[: len(self.ops) + 1]

    @cached_property
    def during(self) -> Sequence[int]:
        """Bytes of pieces that don't move, and of what else it takes, while each op runs."""
        during = [b + t for b, t in zip(self.before, self.besides, strict=False)]
        moving = {piece for pieces in self.takes for piece in pieces}
        for piece, buffer in enumerate(self.memory.buffers):
            if buffer.first >= 0 and piece not in moving:
                during[buffer.first] += buffer.nbytes
        waiting = [b + w for b, w in zip(self.before, self.waits, strict=False)]
        return list(map(max, during, waiting))
