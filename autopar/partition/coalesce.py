"""Coalesces small collectives: one on a buffer instead of one for each value.

A collective takes a latency however small it is, and gradients are many. So reductions that are
alike and don't wait for one another are joined, as DistributedDataParallel does with its buckets
(Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, 2020):

    cat of the flat operands -> all_reduce or reduce_scatter -> slices, as views

Reductions move to where their operands are known, and those of a bucket to the last of them, so
that they run beside what follows; slices and views of results stand where these are read first.
What would take longer to copy than a collective's latency stays alone. Sums that are for later
phases, as gradients are for the update, don't travel with those that their own phase waits for.

What slices of the mesh send to others is joined in the same way, but not before the receivers read
it: until then they compute. In a pipeline, all that a task sends to another process is joined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from autopar.cost.cluster import Cluster
from autopar.cost.collectives import CommunicationModel
from autopar.cost.reshard.buckets import BUCKET_BYTES, is_worth_joining
from autopar.ir import emitted
from autopar.ir.collectives import (
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    is_collective,
    runs_of_group,
)
from autopar.ir.ops.shape.view import VIEWS
from autopar.ir.program import Function, Op, OpDist, Program, Value

DEFERRED = ("", "update")
"""The groups of sums that nobody waits for: before the updates, and of these."""


@dataclass(frozen=True)
class Coalesce:
    """Joins reductions of a partitioned program.

    Attributes:
        cluster: Predicts latencies and the seconds of copies.
        phases_apart: Whether reductions of different phases stay apart, as they have to where the
            phases are programs of their own.
        pipeline: The mesh axis along which stages lie, whose tasks are ordered later; "" for none.
    """

    name: ClassVar[str] = "coalesce"
    cluster: Cluster
    phases_apart: bool = False
    pipeline: str = ""

    def __call__(self, program: Program) -> Program:
        """Returns the program with its reductions joined."""
        assert program.mesh is not None
        model = CommunicationModel(self.cluster, program.mesh)
        functions = {
            name: self._coalesced(function, model) for name, function in program.functions.items()
        }
        return replace(program, functions=functions)

    def _coalesced(self, function: Function, model: CommunicationModel) -> Function:
        """Returns a function with its reductions joined, then those of their results, and so on."""
        joined: set[str] = set()
        while True:
            coalescing = _Coalescing(function, model, self, joined)
            function = coalescing.coalesce()
            if not coalescing.has_put_off:
                return function


@dataclass(eq=False)
class _Bucket:
    """Reductions to be joined, and the views of their results.

    Attributes:
        key: What its reductions have in common.
        last: Position of the last of the reductions.
        ops: The reductions.
        nbytes: Bytes of the operands.
        after: What takes results out of the buffer, and the views and sums that were put off.
        sums: How many of them are sums.
    """

    key: tuple[object, ...]
    last: int = 0
    ops: list[Op] = field(default_factory=list)
    nbytes: int = 0
    after: list[Op] = field(default_factory=list)
    sums: int = 0


class _Coalescing:
    """Rewrites one function."""

    def __init__(
        self,
        function: Function,
        model: CommunicationModel,
        options: Coalesce,
        joined: set[str],
    ) -> None:
        self.function = function
        self.joined = joined
        self.has_put_off = False
        self.model = model
        self.options = options
        self.producers = function.producers()
        self.readers: dict[str, list[Op]] = {}
        for op in function.ops:
            for name in op.operands:
                self.readers.setdefault(name, []).append(op)
        self.values = dict(function.values)
        self.outputs = frozenset(function.outputs)
        self.open: dict[tuple[object, ...], _Bucket] = {}
        self.bucket_of: dict[str, _Bucket] = {}
        self.placed: dict[int, list[Op]] = {}
        self.dropped: set[int] = set()

    def coalesce(self) -> Function:
        ops = self._hoisted()
        for index, op in enumerate(ops):
            self._look_at(index, op)
        for bucket in dict.fromkeys(self.bucket_of.values()):
            self._finish(bucket, len(ops) - 1)
        ordered: list[Op] = []
        for index, op in enumerate(ops):
            if index not in self.dropped:
                ordered.append(op)
            ordered.extend(self.placed.get(index, ()))
        return replace(self.function, ops=tuple(ordered), values=self.values)

    def _hoisted(self) -> list[Op]:
        """Returns the ops with each reduction right behind what computes its operand.

        So is what a stage sends: receivers don't wait for it before their task begins.
        """
        moved: dict[int, list[Op]] = {}
        for op in self.function.ops:
            is_moved = self._is_reduction(op) or (self.options.pipeline and self._is_sent(op))
            if is_moved and op.operands[0] in self.producers:
                moved.setdefault(id(self.producers[op.operands[0]]), []).append(op)
        gone = {id(op) for ops in moved.values() for op in ops}
        ordered: list[Op] = []
        for op in self.function.ops:
            if id(op) not in gone:
                _append_with(ordered, op, moved)
        return ordered

    def _look_at(self, index: int, op: Op) -> None:
        read = [self.bucket_of[name] for name in op.operands if name in self.bucket_of]
        if op.kind in VIEWS and len(read) == len(op.operands) == 1:
            read[0].after.append(op)
            self.bucket_of[op.results[0]] = read[0]
            self.dropped.add(index)
            return
        if len(read) == 1 and self._is_put_off(op):
            read[0].after.append(op)
            read[0].sums += 1
            self.bucket_of[op.results[0]] = read[0]
            self.dropped.add(index)
            return
        for bucket in dict.fromkeys(read):
            self._finish(bucket, index - 1)
        if self._is_joinable(op):
            self._join(index, op)

    def _is_put_off(self, op: Op) -> bool:
        """Whether a sum of a bucket's result is reduced over further axes, and nobody waits."""
        return self._is_reduction(op) and self._group(op) in DEFERRED

    def _join(self, index: int, op: Op) -> None:
        key, nbytes = self._key(op), self._nbytes(op)
        if key in self.open and self.open[key].nbytes + nbytes > BUCKET_BYTES:
            self._close(self.open[key])
        bucket = self.open.setdefault(key, _Bucket(key))
        bucket.ops.append(op)
        bucket.last, bucket.nbytes = index, bucket.nbytes + nbytes
        self.bucket_of[op.results[0]] = bucket
        self.dropped.add(index)

    def _close(self, bucket: _Bucket) -> None:
        """Lets nothing more into a bucket, and places its collective."""
        del self.open[bucket.key]
        alone = len(bucket.ops) == 1
        joined, taken = (bucket.ops, []) if alone else self._joined(bucket.ops)
        self.placed.setdefault(bucket.last, []).extend(joined)
        bucket.after[:0] = taken
        if bucket.sums:
            # They are joined next, and run beside what follows too.
            self.placed[bucket.last].extend(bucket.after)
            bucket.after.clear()
            self.has_put_off = True
            if alone:
                self.joined.add(bucket.ops[0].results[0])

    def _finish(self, bucket: _Bucket, index: int) -> None:
        """Places what takes the results of a bucket, behind the op at a position."""
        if self.open.get(bucket.key) is bucket:
            self._close(bucket)
        self.placed.setdefault(index, []).extend(bucket.after)
        self.bucket_of = {name: own for name, own in self.bucket_of.items() if own is not bucket}

    def _is_reduction(self, op: Op) -> bool:
        return op.kind in (ALL_REDUCE, REDUCE_SCATTER) and isinstance(op.arg("axes"), tuple)

    def _is_sent(self, op: Op) -> bool:
        """Whether an op sends something to other slices of the mesh, from where it was computed."""
        return op.kind == BROADCAST and self.values[op.operands[0]].dist is not None

    def _is_joinable(self, op: Op) -> bool:
        """Whether an op may be joined, its blocks are even and copies are cheap."""
        if not self._is_reduction(op) and not self._is_sent(op):
            return False
        if op.results[0] in self.joined:
            return False
        operand, result = self.values[op.operands[0]], self.values[op.results[0]]
        if not is_known(operand) or not is_known(result):
            return False
        if op.kind == REDUCE_SCATTER and not self._is_even(op, operand, result):
            return False
        model = self.model if self._is_sent(op) or op.dist is None else self.model.on(op.dist.mesh)
        price = model.broadcast if self._is_sent(op) else model.all_reduce
        return is_worth_joining(model, self._nbytes(op), price(0, _axes(op)))

    def _is_even(self, op: Op, operand: Value, result: Value) -> bool:
        parts = self._parts(op)
        return op.arg("dim") == 0 and operand.shape[0] == result.shape[0] * parts

    def _parts(self, op: Op) -> int:
        part = self.model.mesh.at(runs_of_group(op).items())
        return part.axes_size(_axes(op))

    def _key(self, op: Op) -> tuple[object, ...]:
        dtype = self.values[op.operands[0]].dtype
        lifetime = op.lifetime
        if not self.options.phases_apart:
            lifetime = lifetime._replace(phase="")
        own = tuple((name, arg) for name, arg in op.args if name not in ("self", "dim"))
        group = self._group(op)
        return op.kind, own, op.dist, self._source(op), dtype, lifetime, group

    def _group(self, op: Op) -> str:
        """Returns with which others a sum may travel: not with what its own phase waits for."""
        made = op
        while is_collective(made.kind) and made.operands[0] in self.producers:
            made = self.producers[made.operands[0]]
        later = list(op.results)
        while later:
            for reader in self.readers.get(later.pop(), ()):
                if reader.kind in VIEWS or self._is_reduction(reader):
                    later += reader.results
                elif reader.lifetime == made.lifetime:
                    return "awaited"
        return DEFERRED[made.phase == "update"]

    def _source(self, op: Op) -> OpDist | None:
        """Returns who computes on the operand: of what is sent, another slice of the mesh."""
        layout = self.values[op.operands[0]].dist
        return OpDist(layout.mesh) if op.kind == BROADCAST and layout is not None else op.dist

    def _nbytes(self, op: Op) -> int:
        operand = self.values[op.operands[0]]
        return math.prod(operand.known_shape) * operand.itemsize

    def _joined(self, members: Sequence[Op]) -> tuple[list[Op], list[Op]]:
        """Returns the ops that fill and reduce a buffer, and those that take the results out.

        The first dimension of a buffer to be scattered is that of the blocks.
        """
        last = members[-1]
        scattered = last.kind == REDUCE_SCATTER
        lead, kept = ((self._parts(last),), (1,)) if scattered else ((), ())
        dim = len(lead)
        filling: list[Op] = []
        flat: list[str] = []
        for op in members:
            operand = self.values[op.operands[0]]
            size = math.prod(operand.known_shape) // math.prod(lead)
            name = self._value(f"{op.results[0]}.flat", operand, (*lead, size))
            view = _view(op, operand.name, name, (*lead, size))
            filling.append(replace(view, dist=self._source(op)))
            flat.append(name)
        total = sum(self._size(name, dim) for name in flat)
        like = self.values[last.operands[0]]
        bucket = self._value(f"{last.results[0]}.bucket", like, (*lead, total))
        reduced = self._value(f"{last.results[0]}.reduced", like, (*kept, total))
        joined = emitted.cat(flat, dim).instead_of(last, bucket)
        filling.append(replace(joined, dist=self._source(last)))
        filling.append(replace(last.with_operands([bucket]), results=(reduced,)))
        self.joined.add(reduced)
        taken: list[Op] = []
        start = 0
        for op, name in zip(members, flat, strict=True):
            end = start + self._size(name, dim)
            taken.extend(self._sliced(op, reduced, dim, start, end))
            start = end
        return filling, taken

    def _size(self, name: str, dim: int) -> int:
        return self.values[name].known_shape[dim]

    def _sliced(self, op: Op, buffer: str, dim: int, start: int, end: int) -> Iterable[Op]:
        """Yields what takes a result out of a buffer."""
        result = self.values[op.results[0]]
        shape = (*self.values[buffer].known_shape[:dim], end - start)
        piece = self._value(f"{result.name}.slice", result, shape)
        # The caller may keep an output, which must not keep the buffer.
        take = emitted.slice_copy if result.name in self.outputs else emitted.slice_
        yield take(start, end, dim).with_operand(buffer).instead_of(op, piece)
        yield _view(op, piece, result.name, result.known_shape)

    def _value(self, name: str, like: Value, shape: tuple[int, ...]) -> str:
        """Adds a value to which no layout belongs, under a fresh name."""
        fresh = name
        while fresh in self.values:
            fresh += "_"
        self.values[fresh] = replace(like, name=fresh, shape=shape, role="activation", dist=None)
        return fresh


def _append_with(ordered: list[Op], op: Op, moved: Mapping[int, Sequence[Op]]) -> None:
    """Appends an op, and those that are to follow it."""
    ordered.append(op)
    for each in moved.get(id(op), ()):
        _append_with(ordered, each, moved)


def _axes(op: Op) -> tuple[str, ...]:
    axes = op.arg("axes")
    assert isinstance(axes, tuple)
    return tuple(map(str, axes))


def is_known(value: Value) -> bool:
    """Returns whether a value has the same shape on all ranks."""
    return all(isinstance(size, int) for size in value.shape)


def _view(op: Op, operand: str, result: str, shape: tuple[int, ...]) -> Op:
    return emitted.view(shape).with_operand(operand).instead_of(op, result)
