"""Prefetches what is gathered: an all_gather starts before its result is needed.

The emitter starts a collective where the program has it and waits where its result is read first.
So a gather moves to where its operand is known, past what others of the same phase compute. As it
takes memory from there on, no more is under way, or there and not read yet, than the largest of
the gathered tensors takes, nor more than a bucket of `Coalesce`; but the next one always is, as in
FullyShardedDataParallel (Zhao et al., *PyTorch FSDP*, 2023).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.cost.reshard.buckets import BUCKET_BYTES
from autopar.ir.collectives import ALL_GATHER
from autopar.ir.program import Function, Op, Program
from autopar.partition.coalesce import is_known


@dataclass(frozen=True)
class Prefetch:
    """Moves the gathers of a partitioned program ahead."""

    name: ClassVar[str] = "prefetch"

    def __call__(self, program: Program) -> Program:
        """Returns the program with its gathers ahead of their readers."""
        functions = {
            name: _Prefetching(function).prefetch() for name, function in program.functions.items()
        }
        return replace(program, functions=functions)


class _Prefetching:
    """Rewrites one function; ops by their former position."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.gathers = [index for index, op in enumerate(function.ops) if self._is_gather(op)]
        largest = max((self._nbytes(index) for index in self.gathers), default=0)
        self.room = min(BUCKET_BYTES, largest)
        self.readers = _first_readers(function.ops)
        self.ahead: list[tuple[int, int]] = []

    def prefetch(self) -> Function:
        ops = self.function.ops
        before: dict[int, list[Op]] = {}
        earliest = _earliest(self.function)
        for index in self.gathers:
            before.setdefault(self._start(index, earliest[index]), []).append(ops[index])
            read = self.readers.get(ops[index].results[0], len(ops))
            insort(self.ahead, (read, self._nbytes(index)))
        moved = frozenset(self.gathers)
        ordered: list[Op] = []
        for index, op in enumerate(ops):
            ordered.extend(before.get(index, ()))
            if index not in moved:
                ordered.append(op)
        return replace(self.function, ops=tuple(ordered))

    def _start(self, gather: int, earliest: int) -> int:
        """Returns the op before which a gather starts, given the gathers that moved before it."""
        held = self._nbytes(gather)
        for read, nbytes in reversed(self.ahead):
            held += nbytes
            if read <= earliest or held > self.room:
                return min(gather, max(earliest, read))
        return earliest

    def _is_gather(self, op: Op) -> bool:
        return op.kind == ALL_GATHER and is_known(self.function.values[op.results[0]])

    def _nbytes(self, gather: int) -> int:
        value = self.function.values[self.function.ops[gather].results[0]]
        return math.prod(value.known_shape) * value.itemsize


def _earliest(function: Function) -> list[int]:
    """Returns the place before which each op's operands aren't known, or its phase hasn't begun."""
    known: dict[str, int] = {}
    earliest: list[int] = []
    begin, lifetime = 0, None
    for index, op in enumerate(function.ops):
        if op.lifetime != lifetime:
            begin, lifetime = index, op.lifetime
        earliest.append(max((known.get(name, 0) for name in op.operands), default=begin))
        earliest[-1] = max(earliest[-1], begin)
        known.update(dict.fromkeys(op.results, index + 1))
    return earliest


def _first_readers(ops: Sequence[Op]) -> dict[str, int]:
    """Returns the first op that reads each value."""
    readers: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in op.operands:
            readers.setdefault(name, index)
    return readers
