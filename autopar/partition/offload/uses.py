"""Uses: the buckets of stored tensors that wait in the host's memory, and who needs each when.

A phase of a microbatch needs tensors in the order in which its ops read them first. Tensors that
follow one another are a bucket, as long as it is no larger than the largest tensor, nor than a
bucket of `Coalesce`; but what is small, as a bias, goes with a large one before it. The update
needs a parameter and its state at once, so they go together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from autopar.cost.reshard.buckets import BUCKET_BYTES
from autopar.ir.collectives import is_collective
from autopar.ir.expr.expression import planned, prod
from autopar.ir.fixed import Fixed, Index, indices_of
from autopar.ir.memory.kernels import may_alias
from autopar.ir.memory.transfers import is_on_host
from autopar.ir.program import CALLS, Function, Op, Program, Value

_T = TypeVar("_T")

UPDATE = "update"

SMALL = 1 / 8
"""By which part a bucket may be larger than it should be."""


@dataclass(frozen=True)
class Use:
    """A bucket that a phase needs; ops by their position.

    Attributes:
        inputs: The stored inputs in it.
        first: The first op that needs one of them.
        last: The last one, or the last one that makes new content of one.
        renewed: Of which inputs that is which value, as pairs (value, input).
    """

    inputs: tuple[str, ...]
    first: int
    last: int
    renewed: tuple[tuple[str, str], ...] = ()


@dataclass
class _Need:
    """What is needed at once: like `Use`, while it grows."""

    first: int
    last: int
    inputs: dict[str, None]
    renewed: list[tuple[str, str]]

    def extend(self, other: _Need) -> None:
        self.last = max(self.last, other.last)
        self.inputs.update(other.inputs)
        self.renewed += other.renewed


Segment = Sequence[int]
"""Positions of ops that follow one another in a phase of a microbatch."""


def segments(function: Function, fixed: Fixed = ()) -> Iterator[Segment]:
    """Yields the segments of a function, as ranks on a slice of the mesh run it.

    Args:
        function: The function.
        fixed: The slice; by default the whole mesh, of which all ops count.
    """
    run = [(at, op) for at, op in enumerate(function.ops) if _is_run(function, op, dict(fixed))]
    for _, ops in groupby(run, key=lambda each: (each[1].phase, each[1].microbatch)):
        yield [at for at, _ in ops]


def _is_run(function: Function, op: Op, fixed: Mapping[str, Index]) -> bool:
    """Whether ranks on a slice run an op, or bring something to it."""
    ends = [op.dist, *([function.values[op.operands[0]].dist] if is_collective(op.kind) else [])]
    return not fixed or any(
        dist is None or all(_may_be(fixed.get(axis, at), at) for axis, at in dist.mesh.fixed)
        for dist in ends
    )


def _may_be(index: Index, other: Index) -> bool:
    """Whether a process may be at both of two places along an axis."""
    return not set(indices_of(index)).isdisjoint(indices_of(other))


def uses_of(program: Program, names: Collection[str], segment: Segment) -> list[Use]:
    """Returns the buckets that a segment of `main` needs, in the order of their first readers.

    Args:
        program: A partitioned program.
        names: The stored inputs that wait in the host's memory.
        segment: The ops.
    """
    main = program.main
    needs: dict[str, _Need] = {}
    groups = owners(program, names) if main.ops[segment[0]].phase == UPDATE else {}
    for name, need in _needs(main, names, segment).items():
        group = groups.get(name, name)
        if group in needs:
            needs[group].extend(need)
        else:
            needs[group] = need
    sizes = {name: value_bytes(main.values[name]) for name in names}
    return list(_buckets(list(needs.values()), sizes))


def owners(program: Program, names: Collection[str]) -> dict[str, str]:
    """Returns the parameter that each stored input is, or is state of: both have its label."""
    wanted = frozenset(names)
    ports = (port for port in program.signature.inputs if port.name in wanted)
    return {
        port.name: port.label.partition("/")[2] if port.role == "optimizer_state" else port.label
        for port in ports
    }


def value_bytes(value: Value) -> int:
    """Returns the bytes of a value on the first rank, at the sizes that are planned for."""
    return planned(prod(value.shape)) * value.itemsize


def _buckets(needs: Sequence[_Need], sizes: Mapping[str, int]) -> Iterator[Use]:
    """Yields what is needed, joined as far as there is room."""

    def nbytes(need: _Need) -> int:
        return sum(sizes[name] for name in need.inputs)

    for first, *others in joined(needs, nbytes):
        for need in others:
            first.extend(need)
        yield _use(first)


def joined(needs: Sequence[_T], nbytes: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yields what follows one another, in buckets as large as there is room.

    Args:
        needs: What is needed.
        nbytes: Returns the bytes of each.
    """
    room = min(BUCKET_BYTES, max(map(nbytes, needs), default=0))
    bucket: list[_T] = []
    left = 0.0
    for need in needs:
        if bucket and nbytes(need) > left:
            yield bucket
            bucket = []
        if not bucket:
            left = (1 + SMALL) * max(room, nbytes(need))
        bucket.append(need)
        left -= nbytes(need)
    if bucket:
        yield bucket


def _use(need: _Need) -> Use:
    return Use(tuple(need.inputs), need.first, need.last, tuple(need.renewed))


def _needs(function: Function, names: Collection[str], segment: Segment) -> dict[str, _Need]:
    """Returns which ops need each input, or a view of it, in the order of the first ones."""
    sources = {output: name for output, name in function.aliases if name in names}
    shares: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in names}
    sent: dict[str, frozenset[str]] = {}
    needs: dict[str, _Need] = {}
    for at in segment:
        op = function.ops[at]
        if is_on_host(op):
            continue
        read = _read(op, shares, names)
        awaited = (sent.pop(name, frozenset()) for name in op.operands)
        made = [(output, sources[output]) for output in op.results if output in sources]
        touched = read.union(*awaited)
        for name in sorted({*touched, *(source for _, source in made)}):
            need = needs.setdefault(name, _Need(at, at, {name: None}, []))
            need.last = at
            need.renewed += [pair for pair in made if pair[1] == name]
        if is_collective(op.kind):
            # What is sent stays until somebody reads what comes of it.
            sent.update(dict.fromkeys(op.results, read))
        elif read and may_alias(op.kind):
            shares.update(dict.fromkeys(op.results, read))
    return needs


def _read(op: Op, shares: Mapping[str, frozenset[str]], names: Collection[str]) -> frozenset[str]:
    """Returns the inputs whose memory an op reads; what is called brings them itself."""
    read = op.operands
    if op.kind in CALLS:
        read = tuple(name for name in read if name not in names)
    return frozenset().union(*(shares.get(name, frozenset()) for name in read))
