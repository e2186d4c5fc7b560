"""The tape: the record of a rank's program, with what may leave and what the user wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.cost import Cluster, evaluate, lifetimes
from autopar.ir.activations import OFFLOAD, SAVE, choice_of
from autopar.ir.collectives import axes_of_group
from autopar.ir.program import Function, Op, Program
from autopar.partition.recompute.offload_candidates import OffloadCandidate, offload_candidates
from autopar.partition.recompute.record import Record
from autopar.partition.recompute.repeat import repeated
from autopar.partition.recompute.shared import Shared
from autopar.partition.recompute.user_choices import user_choices
from autopar.partition.recompute.way import Way

_ALL_ITS_OWN = Shared()


@dataclass(frozen=True)
class Tape(Record):
    """A record from which ways to run the program are chosen."""

    @cached_property
    def offload_candidates(self) -> Mapping[int, OffloadCandidate]:
        """The values that may leave for the host's memory."""
        return offload_candidates(self)

    @cached_property
    def free_candidates(self) -> Mapping[int, OffloadCandidate]:
        """Those of them of which the user says nothing; none if the host's memory is no other."""
        if self.cluster.host_link is None:
            return {}
        free = {index for index, op in enumerate(self.ops) if not choice_of(op)[0]}
        return {
            value: each
            for value, each in self.offload_candidates.items()
            if self.makers[value] in free
        }

    @cached_property
    def user_choices(self) -> Way:
        """What the user wants."""
        return user_choices(self, self.offload_candidates)


def tape_of(
    program: Program,
    cluster: Cluster,
    *,
    inside: Sequence[bool] = (),
    free: Sequence[bool] = (),
    shared: Shared = _ALL_ITS_OWN,
) -> Tape:
    """Returns the tape of a partitioned program.

    Args:
        program: The program.
        cluster: Predicts seconds.
        inside: Of each op, whether it is a part of passes; all are, where nothing is said.
        free: Of each op, whether it may be computed again; as before.
        shared: What isn't decided here.
    """
    main = program.main
    memory = lifetimes(program)
    costs = evaluate(program, cluster).costs
    numbers = {name: number for number, name in enumerate(_names(main))}
    makers = [-1] * len(numbers)
    for index, op in enumerate(main.ops):
        for name in op.results:
            makers[numbers[name]] = index

    def counted(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(numbers[name] for name in names))

    inside, free = (each or [True] * len(main.ops) for each in (inside, free))
    late = [op.phase == "backward" and each for op, each in zip(main.ops, inside, strict=True)]
    turns: dict[int, int] = {}
    for index, op in enumerate(main.ops):
        if late[index]:
            turns.setdefault(op.microbatch, index)
    early = [
        op.phase == "forward" and inside[index] and index < turns.get(op.microbatch, 0)
        for index, op in enumerate(main.ops)
    ]
    fixed = {axis for op in main.ops if op.dist is not None for axis, _ in op.dist.mesh.fixed}
    again = [
        repeated(op)
        if may
        and first
        and op.results not in shared.unrepeated
        and choice_of(op)[0] not in (SAVE, OFFLOAD)
        and fixed.isdisjoint(axes_of_group(op))
        else None
        for op, first, may in zip(main.ops, early, free, strict=True)
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
        late=late,
        batches=[op.microbatch for op in main.ops],
        names=list(numbers),
        makers=makers,
        places=[memory.buffers_of[name] for name in numbers],
        cluster=cluster,
        shared=shared,
    )


def _again_seconds(
    program: Program, cluster: Cluster, again: Sequence[Op | None], seconds: Sequence[float]
) -> list[float]:
    """Returns what copies take: as long as what they repeat, unless they are other ops."""
    main, copies = program.main, list(seconds)
    others = {
        index: op
        for index, op in enumerate(again)
        if op is not None and op.kind != main.ops[index].kind
    }
    alone = program.with_main(replace(main, ops=tuple(others.values())))
    for index, cost in zip(others, evaluate(alone, cluster).costs, strict=True):
        copies[index] = cost.seconds
    return copies


def _names(main: Function) -> list[str]:
    return [*main.inputs, *(name for op in main.ops for name in op.results)]
