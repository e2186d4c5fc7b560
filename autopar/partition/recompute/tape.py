"""The tape: a rank's program as numbers, so that ways to run it are compared in milliseconds.

Ops, values and pieces of memory are counted. What ops cost and which memory they take is as the
evaluator says of the program as it is; the tape knows what of that moves with the order of ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from autopar.cost import Cluster, Lifetimes, evaluate, kinds_of_ranks, lifetimes
from autopar.ir.activations import OFFLOAD, SAVE, choice_of
from autopar.ir.expr import evaluate as evaluate_expr
from autopar.ir.program import Function, Op, Program
from autopar.partition.recompute.offload_candidates import Leaving, leaving_of
from autopar.partition.recompute.repeat import repeated
from autopar.partition.recompute.user_choices import wished
from autopar.partition.recompute.way import Way


@dataclass(frozen=True)
class Tape:
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
        found: list[list[int]] = [[] for _ in self.names]
        for at, values in enumerate(self.reads):
            for value in values:
                found[value].append(at)
        return found

    @cached_property
    def twins(self) -> Mapping[tuple[int, int], int]:
        """By forward op and microbatch, the backward op that computes the same by itself."""
        late: dict[tuple[object, ...], int] = {}
        for at, op in enumerate(self.ops):
            if op.phase == "backward":
                late.setdefault((op.kind, op.args, op.microbatch), at)
        batches = sorted(set(self.batches))
        return {
            (at, batch): late[op.kind, op.args, batch]
            for at, op in enumerate(self.ops)
            for batch in batches
            if self.early[at] and (op.kind, op.args, batch) in late
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
        makers = {name: at for at, op in enumerate(self.ops) for name in op.results}
        found: list[list[int]] = [[] for _ in self.ops]
        for piece, buffer in enumerate(self.memory.buffers):
            # What a started collective makes is taken by who waits for it, but moves with it.
            at = min(buffer.first, makers.get(buffer.name, buffer.first))
            if at >= 0 and (self.early[at] or at in moving):
                found[at].append(piece)
        return found

    @cached_property
    def ends(self) -> Mapping[int, Sequence[int]]:
        """By op, the pieces that are there until then though no op reads them.

        So is new content until it is written over the old one.
        """
        last: dict[int, int] = {}
        for at, values in enumerate(self.reads):
            last.update((piece, at) for value in values for piece in self.places[value])
        found: dict[int, list[int]] = {}
        for pieces in self.takes:
            for piece in pieces:
                end = self.memory.buffers[piece].last
                if not self.stays[piece] and end > last.get(piece, -1):
                    found.setdefault(end, []).append(piece)
        return found

    @cached_property
    def leaving(self) -> Mapping[int, Leaving]:
        """The values that may leave for the host's memory."""
        return leaving_of(self)

    @cached_property
    def offered(self) -> Mapping[int, Leaving]:
        """Those of them of which the user says nothing; none if the host's memory is no other."""
        if self.cluster.host_link is None:
            return {}
        free = {at for at, op in enumerate(self.ops) if not choice_of(op)[0]}
        return {value: each for value, each in self.leaving.items() if self.makers[value] in free}

    @cached_property
    def wished(self) -> Way:
        """What the user wants."""
        return wished(self)

    @cached_property
    def value_bytes(self) -> Sequence[int]:
        """Bytes of each value's elements, on the rank with the largest blocks."""
        mesh = self.program.mesh
        coords = dict.fromkeys(mesh.dim_names if mesh is not None else (), 0)
        values = (self.function.values[name] for name in self.names)
        return [
            math.prod(evaluate_expr(size, coords) for size in each.shape) * each.itemsize
            for each in values
        ]

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
        found = list(self.memory.awaited_bytes)
        for piece in (piece for pieces in self.takes for piece in pieces):
            found[self.memory.buffers[piece].first] -= self.nbytes[piece]
        return found

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
        found = [b + t for b, t in zip(self.before, self.besides, strict=False)]
        moving = {piece for pieces in self.takes for piece in pieces}
        for piece, buffer in enumerate(self.memory.buffers):
            if buffer.first >= 0 and piece not in moving:
                found[buffer.first] += buffer.nbytes
        waiting = [b + w for b, w in zip(self.before, self.waits, strict=False)]
        return list(map(max, found, waiting))


def tape_of(program: Program, cluster: Cluster) -> Tape:
    """Returns the tape of a partitioned program.

    Args:
        program: The program.
        cluster: Predicts seconds.
    """
    main = program.main
    memory = lifetimes(program)
    costs = evaluate(program, cluster).costs
    numbers = {name: number for number, name in enumerate(_names(main))}
    makers = [-1] * len(numbers)
    for at, op in enumerate(main.ops):
        for name in op.results:
            makers[numbers[name]] = at

    def counted(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(numbers[name] for name in names))

    turns: dict[int, int] = {}
    for at, op in enumerate(main.ops):
        if op.phase == "backward":
            turns.setdefault(op.microbatch, at)
    early = [
        op.phase == "forward" and at < turns.get(op.microbatch, 0) for at, op in enumerate(main.ops)
    ]
    again = [
        repeated(op) if first and choice_of(op)[0] not in (SAVE, OFFLOAD) else None
        for op, first in zip(main.ops, early, strict=True)
    ]
    return Tape(
        program=program,
        memory=memory,
        seconds=[cost.seconds for cost in costs],
        cheap=[not cost.flops and not cost.communication_seconds for cost in costs],
        reads=[counted(op.operands) for op in main.ops],
        makes=[counted(op.results) for op in main.ops],
        again=again,
        again_seconds=_again_seconds(program, cluster, again, [cost.seconds for cost in costs]),
        again_reads=[() if op is None else counted(op.operands) for op in again],
        again_makes=[() if op is None else counted(op.results) for op in again],
        early=early,
        late=[op.phase == "backward" for op in main.ops],
        batches=[op.microbatch for op in main.ops],
        names=list(numbers),
        makers=makers,
        places=[memory.buffers_of[name] for name in numbers],
        cluster=cluster,
    )


def _again_seconds(
    program: Program, cluster: Cluster, again: Sequence[Op | None], seconds: Sequence[float]
) -> list[float]:
    """Returns what copies take: as long as what they repeat, unless they are other ops."""
    main, found = program.main, list(seconds)
    others = {
        at: op for at, op in enumerate(again) if op is not None and op.kind != main.ops[at].kind
    }
    alone = program.with_main(replace(main, ops=tuple(others.values())))
    for at, cost in zip(others, evaluate(alone, cluster).costs, strict=True):
        found[at] = cost.seconds
    return found


def _names(main: Function) -> list[str]:
    return [*main.inputs, *(name for op in main.ops for name in op.results)]
