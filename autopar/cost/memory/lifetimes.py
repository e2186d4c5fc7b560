"""Lifetimes: which memory a rank's program takes, from which op to which.

This is what the emitter's code does, derived from the program alone: a value is dropped after its
last use, views keep alive what they are views of, new content is written into stored inputs where
that is safe, and a started sum is written over an operand that nobody else reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autopar.cost.memory.buffers import (
    COMMUNICATION,
    GRADIENTS,
    HOST,
    INPUTS,
    PARAMETERS,
    SAVED,
    STATE,
    TEMPORARIES,
    Buffer,
    Execution,
    Lifetimes,
)
from autopar.cost.memory.collectives import Collective, MemoryUse, memory_use
from autopar.cost.memory.kernel_results import Effect, effect
from autopar.cost.memory.known import Given, Known, Taken
from autopar.cost.memory.loop import Loop, Piece
from autopar.ir.collectives import declared, is_collective
from autopar.ir.emitted import OFFLOAD
from autopar.ir.memory.joining import runs
from autopar.ir.memory.overlap import async_collectives, plan_overlap
from autopar.ir.memory.storage import Storage
from autopar.ir.memory.strides import Placed
from autopar.ir.memory.transfers import hosted, is_on_host
from autopar.ir.memory.updates import Mutation, Writes, plan_writes
from autopar.ir.ops.create.creation import OF_A_SHAPE
from autopar.ir.ops.create.drawing import DRAWINGS, drawing_bytes
from autopar.ir.program import CALL, REPEAT, Function, Op, Program, callee_of, trip_of

_STORED = {
    "parameter": PARAMETERS,
    "buffer": PARAMETERS,
    "state": PARAMETERS,
    "constant": PARAMETERS,
    "optimizer_state": STATE,
}


class _UnderWay(NamedTuple):
    """A collective under way: the buffers that are sent and that it arrives in."""

    sent: tuple[int, ...]
    arriving: int | None
    memory: MemoryUse


def lifetimes(
    program: Program,
    coords: Mapping[str, int] | None = None,
    execution: Execution | None = None,
) -> Lifetimes:
    """Returns the memory that `main` takes on a rank.

    Args:
        program: A serial, partitioned or executable program.
        coords: The rank's coordinates; by default 0 everywhere, where blocks are largest.
        execution: How it is executed; by default as a trainer does, on gloo.
    """
    known = Known(program, coords or {}, execution or Execution())
    return _Walk(known, program.main).lifetimes(known.execution.kept_until)


class _Walk:
    """Goes once over the ops of a function, in the order in which they are executed."""

    def __init__(self, known: Known, function: Function) -> None:
        self.known = known
        self.function = function
        self.async_results = async_collectives(function, known.members, known.shape)
        self.storage = Storage(known.program, function, self._is_async)
        # What callers give away is written over whoever runs them.
        in_place = known.execution.in_place if function.name == "main" else bool(function.aliases)
        # Trainers look at the loss before a step writes anything; inference writes what it can.
        guarded = any(op.phase == "update" for op in function.ops)
        self.writes = (
            plan_writes(known.program, self.storage, guarded=guarded, function=function)
            if in_place
            else Writes(-1)
        )
        self.overlap = plan_overlap(function, self.async_results, self.writes)
        until = known.execution.until if function.name == "main" else ()
        self.together = until or _executed_together(function, self.writes)
        self.placed: dict[str, Placed] = {}
        self.buffers: list[Buffer] = []
        self.of: dict[str, tuple[int, ...]] = {}
        self.temporary = [0] * len(function.ops)
        self.communication = [0] * len(function.ops)
        self.awaited = [0] * len(function.ops)
        self.under_way: dict[str, _UnderWay] = {}

    def lifetimes(self, kept_until: Mapping[str, int]) -> Lifetimes:
        """Returns the memory of `main`."""
        there = hosted(self.known.program)
        for name in self.function.inputs:
            kind = _STORED.get(self.function.values[name].role, INPUTS)
            kind = HOST if name in there else kind
            self._bind(name, self._dense(name), (self._take(name, self._dense(name), kind, -1),))
            self._extend(self.of[name], len(self.function.ops))
        return self._run(kept_until)

    def taken(self, given: Given) -> Taken:
        """Returns what a call of the function takes."""
        count = len(self.function.ops)
        self.buffers += (
            Buffer("", nbytes, HOST if is_host else INPUTS, -1, -1 if is_dead else count)
            for nbytes, is_dead, is_host in given.pieces
        )
        for name, (placed, pieces) in zip(self.function.inputs, given.operands, strict=True):
            self._bind(name, placed, pieces)
        found = self._run({})
        outputs = self.function.outputs
        new = {piece for name in outputs for piece in self.of[name] if piece >= len(given.pieces)}
        hosts = frozenset(piece for piece in new if self.buffers[piece].kind == HOST)
        inside = range(len(given.pieces), len(self.buffers))
        return Taken(
            max(found.at_bytes(), default=given.nbytes),
            tuple((self.placed[name], self.of[name]) for name in outputs),
            {piece: self.buffers[piece].nbytes for piece in sorted(new)},
            hosts,
            found.host_peak_bytes([piece for piece in inside if piece not in hosts]),
        )

    def _run(self, kept_until: Mapping[str, int]) -> Lifetimes:
        ops = self.function.ops
        for position, op in enumerate(ops):
            self._read(op, position)
            self._compute(op, position)
            self._await(self.overlap.after.get(position, ()), position + 1)
            self._write(position)
        self._await(self.overlap.before.get(len(ops), ()), len(ops))
        self._write(len(ops))
        for name, position in (
            *kept_until.items(),
            *((name, len(ops)) for name in self.function.outputs),
        ):
            self._extend(self.of[name], position)
        return Lifetimes(
            ops,
            tuple(self.buffers),
            self.of,
            tuple(self.temporary),
            tuple(self.communication),
            tuple(self.awaited),
        )

    def _write(self, position: int) -> None:
        """New content goes over the old one."""
        for output, source in self.writes.after.get(position, ()):
            self._extend(self.of[output], position)
            self._bind(output, self.placed[source], self.of[source])

    def _read(self, op: Op, position: int) -> None:
        self._await(self.overlap.before.get(position, ()), position)
        for name in op.operands:
            self._extend(self.of[name], self.together[position])
            if op.phase == "backward" and op.kind not in OF_A_SHAPE:
                for index in self.of[name]:
                    buffer = self.buffers[index]
                    if buffer.kind in _BY_CHANCE and self._is_forward(buffer):
                        buffer.kind = SAVED

    def _is_forward(self, buffer: Buffer) -> bool:
        return buffer.first >= 0 and self.function.ops[buffer.first].phase == "forward"

    def _compute(self, op: Op, position: int) -> None:
        if is_collective(op.kind):
            self._collective(op, position)
        elif op.kind == CALL:
            self._call(op, position)
        elif op.kind == REPEAT:
            self._repeat(op, position)
        elif op.kind == "barrier":
            for result, operand in zip(op.results, op.operands, strict=True):
                self._bind(result, self.placed[operand], self.of[operand])
        elif position in self.writes.mutations:
            self._mutate(op, position, self.writes.mutations[position])
        else:
            self._apply(op, position, self._effect(op))

    def _effect(self, op: Op) -> Effect:
        operands = tuple(self.placed[name] for name in op.operands)
        results = tuple(self._shape(name) for name in op.results)
        made = effect(op.kind, self.known.plain(op), operands, results)
        if not self.known.execution.dense_copies:
            return Effect(made.results)
        drawing = self._drawing_bytes(op) if op.kind in DRAWINGS else 0
        return Effect(made.results, made.temporary_bytes + drawing)

    def _drawing_bytes(self, op: Op) -> int:
        """Returns what a random op takes besides its results."""
        on_cpu = self.known.execution.backend == "gloo"
        results = [self._dense(name) for name in op.results]
        most = drawing_bytes(
            op.kind, math.prod(results[0].shape), results[0].itemsize, in_pieces=on_cpu
        )
        return max(0, most - sum(each.nbytes for each in results))

    def _apply(self, op: Op, position: int, effect: Effect) -> None:
        if not is_on_host(op):
            self.temporary[position] += effect.temporary_bytes
        operands = op.operands
        for name, result in zip(op.results, effect.results, strict=True):
            placed = Placed(self._shape(name), result.strides, self._itemsize(name))
            if result.operand is None:
                kind = HOST if op.kind == OFFLOAD or is_on_host(op) else TEMPORARIES
                taken = self._take(name, placed, kind, position)
                self.buffers[taken].nbytes = max(placed.nbytes, result.nbytes)
                self._bind(name, placed, (taken,))
            else:
                self._bind(name, placed, self.of[operands[result.operand]])

    def _mutate(self, op: Op, position: int, mutation: Mutation) -> None:
        """Results are operands, or copies of those that are read later."""
        end, kind = self.together[position], HOST if is_on_host(op) else TEMPORARIES
        if kind != HOST:
            self.temporary[end] += self._effect(op).temporary_bytes
        for result, operand in mutation.results.items():
            if operand in mutation.copied:
                placed = self._dense(operand)
                self._bind(result, placed, (self._take(result, placed, kind, position),))
            else:
                self._bind(result, self.placed[operand], self.of[operand])
            self._extend(self.of[result], end)

    def _collective(self, op: Op, position: int) -> None:
        (operand,), (name,) = op.operands, op.results
        is_async = self._is_async(op)
        placed = self._dense(name)
        collective = Collective(
            {**dict(op.args), **dict(self.known.plain(op))},
            self.placed[operand],
            placed,
            self.known.members(op),
            self.known.execution.backend,
            is_async,
            is_async and self.storage.is_dead(operand, position),
        )
        memory = memory_use(declared(op.kind, op.loc), collective)
        self.communication[position] += memory.temporary_bytes
        if not memory.result_bytes and not declared(op.kind).apart:
            self._bind(name, placed, self.of[operand])
        elif is_async:
            self._start(op, position, memory)
        else:
            self._bind(name, placed, (self._communicate(name, memory.result_bytes, position),))

    def _start(self, op: Op, position: int, memory: MemoryUse) -> None:
        """Takes what a collective has under way, and its result if it arrives there."""
        (operand,), (name,) = op.operands, op.results
        sent = self.of[operand] if memory.sends_operand else ()
        if memory.sent_bytes:
            sent = (*sent, self._communicate(name, memory.sent_bytes, position))
        arriving = None
        if memory.arriving_bytes:
            arriving = self._communicate(name, memory.arriving_bytes, position)
        else:
            result = self._communicate(name, memory.result_bytes, position)
            self._bind(name, self._dense(name), (result,))
        self.under_way[name] = _UnderWay(sent, arriving, memory)

    def _await(self, names: Sequence[str], position: int) -> None:
        """Ends collectives before an op, or after the last one."""
        for name in names:
            self._end(name, min(position, len(self.function.ops) - 1))

    def _end(self, name: str, position: int) -> None:
        """Ends a collective: gives back what was sent, then makes the result."""
        pending = self.under_way.pop(name, None)
        if pending is None:  # It is written over its operand.
            return
        memory = pending.memory
        sent = sum(self._give_back(index, position) for index in pending.sent)
        if pending.arriving is None:
            self.awaited[position] += sent
            return
        arrived = self._give_back(pending.arriving, position)
        result = self._communicate(name, memory.result_bytes, position)
        self._bind(name, self._dense(name), (result,))
        self.awaited[position] += arrived + max(sent, memory.result_bytes + memory.ending_bytes)

    def _give_back(self, index: int, position: int) -> int:
        """Keeps a buffer until before an op; returns its bytes if nothing else keeps it longer."""
        buffer = self.buffers[index]
        buffer.last = max(buffer.last, position - 1)
        return buffer.nbytes if buffer.last == position - 1 else 0

    def _communicate(self, name: str, nbytes: int, position: int) -> int:
        self.buffers.append(Buffer(name, nbytes, COMMUNICATION, position, position))
        return len(self.buffers) - 1

    def _is_async(self, op: Op) -> bool:
        return op.results[0] in self.async_results

    def _call(self, op: Op, position: int) -> None:
        """What a call takes besides its operands and results is a temporary."""
        pieces = list(dict.fromkeys(piece for name in op.operands for piece in self.of[name]))
        numbers = {piece: number for number, piece in enumerate(pieces)}
        kept = {
            piece
            for name in op.operands
            if not self.storage.is_dead(name, position)
            for piece in self.of[name]
        }
        given = Given(
            tuple((self.placed[n], tuple(numbers[p] for p in self.of[n])) for n in op.operands),
            tuple(
                (self.buffers[piece].nbytes, piece not in kept, self.buffers[piece].kind == HOST)
                for piece in pieces
            ),
        )
        taken = self._taken_by(callee_of(op), given)
        found = dict(enumerate(pieces))
        for result, (placed, inner) in zip(op.results, taken.results, strict=True):
            for piece in inner:
                if piece not in found:
                    kind = HOST if piece in taken.hosts else TEMPORARIES
                    found[piece] = self._take(result, placed, kind, position)
                    self.buffers[found[piece]].nbytes = taken.nbytes[piece]
            self._bind(result, placed, tuple(found[piece] for piece in inner))
        new = sum(nbytes for piece, nbytes in taken.nbytes.items() if piece not in taken.hosts)
        self.temporary[position] += taken.peak_bytes - given.nbytes - new
        if taken.host_bytes:
            self.buffers.append(Buffer("", taken.host_bytes, HOST, position, position))

    def _taken_by(self, name: str, given: Given) -> Taken:
        """Returns what a call of a function takes."""
        inside, key = self.known.inside, (name, given)
        if key not in inside:
            inside[key] = _Walk(self.known, self.known.program.functions[name]).taken(given)
        return inside[key]

    def _repeat(self, op: Op, position: int) -> None:
        """What a loop takes besides its operands and results is a temporary."""
        pieces = list(dict.fromkeys(piece for name in op.operands for piece in self.of[name]))
        kept = {
            piece
            for name in op.operands
            if not self.storage.is_dead(name, position)
            for piece in self.of[name]
        }
        given = [(self.placed[name], self.of[name]) for name in op.operands]
        known = {piece: Piece(self.buffers[piece].nbytes, piece in kept) for piece in pieces}
        hosts = frozenset(piece for piece in pieces if self.buffers[piece].kind == HOST)
        loop = Loop(op, given, known, hosts)
        for _ in range(trip_of(op)):
            loop.add(self._taken_by(callee_of(op), loop.given()))
        found = {piece: piece for piece in pieces}
        made = 0
        for result, (placed, inner) in zip(op.results, loop.carried, strict=False):
            for piece in inner:
                if piece not in found:
                    found[piece] = self._take(result, placed, TEMPORARIES, position)
                    self.buffers[found[piece]].nbytes = loop.pieces[piece].nbytes
                    made += loop.pieces[piece].nbytes
            self._bind(result, placed, tuple(found[piece] for piece in inner))
        stacked = 0
        for result in op.results[len(loop.carried) :]:
            placed = self._dense(result)
            self._bind(result, placed, (self._take(result, placed, TEMPORARIES, position),))
            stacked += placed.nbytes
        before = sum(known[piece].nbytes for piece in pieces if piece not in hosts)
        self.temporary[position] += loop.peak_bytes(stacked) - before - made - stacked
        if loop.host_bytes:
            self.buffers.append(Buffer("", loop.host_bytes, HOST, position, position))

    def _take(self, name: str, placed: Placed, kind: str, position: int) -> int:
        if self.function.values[name].role == "gradient" and kind != HOST:
            kind = GRADIENTS
        self.buffers.append(Buffer(name, placed.nbytes, kind, position, position))
        return len(self.buffers) - 1

    def _bind(self, name: str, placed: Placed, buffers: tuple[int, ...]) -> None:
        self.placed[name] = placed
        self.of[name] = buffers
        if self.function.values[name].role == "gradient":
            for index in buffers:
                if self.buffers[index].kind in _BY_CHANCE:
                    self.buffers[index].kind = GRADIENTS

    def _extend(self, buffers: tuple[int, ...], position: int) -> None:
        for index in buffers:
            if self.buffers[index].last < position:
                self.buffers[index].last = position

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.known.shape(self.function.values[name])

    def _itemsize(self, name: str) -> int:
        return self.function.values[name].itemsize

    def _dense(self, name: str) -> Placed:
        return self.known.dense(self.function.values[name])


_BY_CHANCE = (TEMPORARIES, COMMUNICATION)
"""Kinds of memory that turns out to be saved, or a gradient."""


def _executed_together(function: Function, writes: Writes) -> Sequence[int]:
    """Returns, per op, the last one that is executed in one call with it."""
    if not writes.mutations:
        return range(len(function.ops))
    return [run[-1] for run in runs(function, writes) for _ in run]
