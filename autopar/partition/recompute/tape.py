"""The tape: a rank's program as numbers, so that ways to run it are compared in milliseconds.

Values and ops are counted. The rank with all coordinates 0 holds and computes most, so sizes are
its.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autopar.cost.cluster import Cluster
from autopar.cost.rank_seconds import RankSeconds
from autopar.ir.expr import IntExpr, evaluate
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops.view import VIEWS
from autopar.ir.program import Function, Op, Value
from autopar.partition.recompute.repeat import repeated

_SHARING = VIEWS | {
    f"aten.{name}"
    for name in (
        "alias.default",
        "detach.default",
        "select.int",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes.default",
        "chunk.default",
        "unbind.int",
        "squeeze.default",
        "unsqueeze.default",
    )
}
"""Ops whose results are in the memory of their first operand."""


@dataclass(frozen=True)
class Tape:
    """The ops of a function.

    Attributes:
        function: The function.
        seconds: Of each op.
        reads: The values that each op reads, each once.
        makes: The values that each op makes.
        again: The op that repeats each op, None where none may.
        again_reads: The values that it reads.
        again_makes: The values whose copies it makes.
        early: Whether each op is of a forward pass.
        late: Whether each op is of a backward pass.
        batches: The microbatch of each op.
        homes: Of each value, the one in whose memory it is.
        nbytes: Bytes of the memory of each value that is its own home.
        makers: The op that makes each value; -1 for inputs.
        kept: Values that are there from the beginning or to the end.
        names: Of the values.
        resident: Bytes of the inputs.
    """

    function: Function
    seconds: Sequence[float]
    reads: Sequence[tuple[int, ...]]
    makes: Sequence[tuple[int, ...]]
    again: Sequence[Op | None]
    again_reads: Sequence[tuple[int, ...]]
    again_makes: Sequence[tuple[int, ...]]
    early: Sequence[bool]
    late: Sequence[bool]
    batches: Sequence[int]
    homes: Sequence[int]
    nbytes: Sequence[int]
    makers: Sequence[int]
    kept: frozenset[int]
    names: Sequence[str]
    resident: int

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The ops."""
        return self.function.ops

    @cached_property
    def readers(self) -> Sequence[Sequence[int]]:
        """The ops that read each value."""
        found: list[list[int]] = [[] for _ in self.homes]
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
        found = {}
        batches = sorted({op.microbatch for op in self.ops})
        for at, op in enumerate(self.ops):
            if op.phase == "forward":
                for batch in batches:
                    twin = late.get((op.kind, op.args, batch))
                    if twin is not None:
                        found[at, batch] = twin
        return found


def tape_of(function: Function, mesh: ProcessMesh, cluster: Cluster) -> Tape:
    """Returns the tape of a partitioned function.

    Args:
        function: The function.
        mesh: Its mesh.
        cluster: Predicts seconds.
    """
    return _Writer(function, mesh, cluster).run()


@dataclass
class _Writer:
    function: Function
    mesh: ProcessMesh
    cluster: Cluster
    numbers: dict[str, int] = field(default_factory=dict)

    def run(self) -> Tape:
        function = self.function
        coords = dict.fromkeys(self.mesh.dim_names, 0)
        costs = RankSeconds(function.values, coords, self.cluster, self.mesh)
        makers = [-1] * len(function.inputs)
        for name in function.inputs:
            self.numbers[name] = len(self.numbers)
        for at, op in enumerate(function.ops):
            for name in op.results:
                self.numbers[name] = len(self.numbers)
                makers.append(at)
        again = [repeated(op) for op in function.ops]
        names = list(self.numbers)
        kept = {self.numbers[name] for name in (*function.inputs, *function.outputs)}
        nbytes = _sizes([function.values[name] for name in names], coords)
        renewed = {self.numbers[output] for output, _ in function.aliases}
        return Tape(
            function=function,
            seconds=[costs.of(op) for op in function.ops],
            reads=[self._numbers(op.operands) for op in function.ops],
            makes=[self._numbers(op.results) for op in function.ops],
            again=again,
            again_reads=[() if op is None else self._numbers(op.operands) for op in again],
            again_makes=[() if op is None else self._numbers(op.results) for op in again],
            early=[op.phase == "forward" for op in function.ops],
            late=[op.phase == "backward" for op in function.ops],
            batches=[op.microbatch for op in function.ops],
            homes=self._homes(),
            nbytes=nbytes,
            makers=makers,
            kept=frozenset(kept - renewed),
            names=names,
            resident=sum(nbytes[: len(function.inputs)]),
        )

    def _numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.numbers[name] for name in names))

    def _homes(self) -> list[int]:
        homes = list(range(len(self.numbers)))
        for op in self.function.ops:
            if op.kind in _SHARING and op.operands:
                home = homes[self.numbers[op.operands[0]]]
                for name in op.results:
                    homes[self.numbers[name]] = home
        return homes


def _sizes(values: Sequence[Value], coords: Mapping[str, int]) -> list[int]:
    known: dict[tuple[tuple[IntExpr, ...], int], int] = {}
    found = []
    for value in values:
        key = (value.shape, value.itemsize)
        if key not in known:
            sizes = (evaluate(size, coords) for size in value.shape)
            known[key] = math.prod(sizes) * value.itemsize
        found.append(known[key])
    return found
