"""Writes updates that the host carries out into a function.

They stand behind all others of their phase, bucket by bucket. While the host updates one, gradients
of the next one go down and the parameters of the one before come up; what comes up is awaited one
bucket later, so the device holds two. Ranks on another slice of the mesh begin anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from autopar.ir import emitted
from autopar.ir.fixed import Fixed
from autopar.ir.memory.transfers import on_host
from autopar.ir.program import Function, Op, Program
from autopar.partition.offload.host_updates import HostUpdate, in_buckets
from autopar.partition.offload.order import Turns, updates
from autopar.partition.offload.write import Transfers

DOWN = "for an update by the host"
UP = "updated by the host"


def with_host_updates(
    program: Program, names: Sequence[str], updated: Sequence[HostUpdate]
) -> tuple[Program, dict[str, str]]:
    """Returns a program of which the host carries out some updates.

    Args:
        program: A partitioned program, in which these come behind all others.
        names: The stored inputs that wait in the host's memory.
        updated: The updates.

    Returns:
        The program; and by output that the host makes for the device, what takes its place.
    """
    writer = _Writer(program, names, updated)
    return program.with_main(writer.function()), writer.instead


@dataclass
class _Bucket:
    """Updates that follow one another, and their ops.

    Attributes:
        updates: The updates.
        before: What the device computes first.
        ops: What the host computes.
        behind: What the device computes of that.
        down: What has gone down, by the device's value.
        coming: What is coming up, by the host's value.
    """

    updates: Sequence[HostUpdate]
    before: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    behind: list[Op] = field(default_factory=list)
    down: dict[str, str] = field(default_factory=dict)
    coming: dict[str, str] = field(default_factory=dict)

    @property
    def fixed(self) -> Fixed:
        """The slice of the mesh that runs them."""
        return self.updates[0].fixed


class _Writer:
    """Writes updates that the host carries out.

    Args:
        program, names, updated: See `with_host_updates`.

    Attributes:
        instead: What takes the place of the outputs that the host makes for the device.
    """

    def __init__(
        self, program: Program, names: Sequence[str], updated: Sequence[HostUpdate]
    ) -> None:
        self._program, self._function = program, program.main
        self._names = names
        self._updated = {each.owner: each for each in updated}
        self._made = Transfers(program.main)
        self._numbers: dict[tuple[str, Fixed], str] = {}
        self._back: dict[str, str] = {}
        there = frozenset().union(*(each.inputs for each in updated))
        self._stay = {output for output, source in program.main.aliases if source in there}

    @property
    def instead(self) -> dict[str, str]:
        """By output, what takes its place."""
        return {name: back for name, back in self._back.items() if name not in self._stay}

    def function(self) -> Function:
        """Returns the function with the updates."""
        main, written = self._function, dict[int, list[Op]]()
        for segment in updates(main):
            turns = Turns(self._program, self._names, segment, self._updated)
            buckets = self._buckets(turns)
            moved = self._fill(buckets, turns)
            written.update((at, []) for at in moved)
            if moved:
                written[moved[-1]] = list(self._written(buckets))
        ops = [
            op
            for at, each in enumerate(main.ops)
            for op in (written[at] if at in written else [self._on_device(each)])
        ]
        instead = self.instead
        return replace(
            main,
            ops=tuple(ops),
            values=self._made.values,
            outputs=tuple(instead.get(name, name) for name in main.outputs),
            aliases=tuple((instead.get(o, o), source) for o, source in main.aliases),
        )

    def _buckets(self, turns: Turns) -> list[_Bucket]:
        """Returns the updates of a segment in buckets, in their order."""
        here = {self._function.ops[at].results[0] for at in turns.segment}
        numbers = sorted((turn, owner) for owner, turn in turns.numbers.items())
        known = (self._updated[owner] for _, owner in numbers if owner in self._updated)
        known = (each for each in known if not each.ops.isdisjoint(here))
        return [_Bucket(bucket) for bucket in in_buckets(self._function, known)]

    def _fill(self, buckets: Sequence[_Bucket], turns: Turns) -> list[int]:
        """Puts the ops of updates into their buckets; returns where they were."""
        of = {turns.numbers[each.owner]: bucket for bucket in buckets for each in bucket.updates}
        ours = frozenset().union(*(each.ops for each in self._updated.values()))
        moved, made = [at for at in turns.segment if turns.turns[at] in of], set[str]()
        for at in moved:
            op, bucket = self._function.ops[at], of[turns.turns[at]]
            if op.results[0] in ours:
                bucket.ops.append(op)
            elif made.isdisjoint(op.operands):
                bucket.before.append(op)
                continue
            else:
                bucket.behind.append(op)
            made.update(op.results)
        return moved

    def _written(self, buckets: Sequence[_Bucket]) -> Iterator[Op]:
        """Yields the ops of buckets: three of them are under way at a time."""
        for _, alike in groupby(buckets, key=lambda bucket: bucket.fixed):
            run = list(alike)
            for at in range(len(run) + 2):
                if at < len(run):
                    yield from self._goes_down(run[at])
                if 1 <= at <= len(run):
                    yield from self._is_updated(run[at - 1])
                if at >= 2:
                    yield from self._has_come(run[at - 2])

    def _goes_down(self, bucket: _Bucket) -> Iterator[Op]:
        """Yields what comes before an update, and the transfers of what the host needs."""
        yield from map(self._on_device, bucket.before)
        for name in dict.fromkeys(n for update in bucket.updates for n in update.sent):
            number = None if self._function.values[name].shape else (name, bucket.fixed)
            if number is None or number not in self._numbers:
                bucket.down[name] = sent = self._made.fresh(name, "sent", DOWN)
                if number is not None:
                    self._numbers[number] = sent
                transfer = emitted.offload().with_operand(name)
                yield self._made.op(transfer, sent, name, bucket.ops[0], DOWN)

    def _is_updated(self, bucket: _Bucket) -> Iterator[Op]:
        """Yields the update, once what it needs has gone down, and what comes up of it."""
        there: dict[str, str] = {}
        for name, sent in bucket.down.items():
            there[name] = self._made.fresh(name, "host", DOWN)
            transfer = emitted.end_offload(name).with_operand(sent)
            yield self._made.op(transfer, there[name], name, bucket.ops[0], DOWN)
            if (name, bucket.fixed) in self._numbers:
                self._numbers[name, bucket.fixed] = there[name]
        for (name, fixed), number in self._numbers.items():
            if fixed == bucket.fixed:
                there[name] = number
        for op in bucket.ops:
            yield on_host(op.with_operands([there.get(name, name) for name in op.operands]))
        for name in (n for update in bucket.updates for n in update.back):
            bucket.coming[name] = coming = self._made.fresh(name, "coming", UP)
            yield self._made.op(
                emitted.reload().with_operand(name), coming, name, bucket.ops[-1], UP
            )

    def _has_come(self, bucket: _Bucket) -> Iterator[Op]:
        """Yields the ends of transfers to the device, and what it computes of that."""
        for name, coming in bucket.coming.items():
            self._back[name] = back = self._made.fresh(name, "back", UP)
            transfer = emitted.end_reload().with_operand(coming)
            yield self._made.op(transfer, back, name, bucket.ops[-1], UP)
        yield from map(self._on_device, bucket.behind)

    def _on_device(self, op: Op) -> Op:
        """Returns an op of the device, which reads what has come up."""
        if self._back.keys().isdisjoint(op.operands):
            return op
        return op.with_operands([self._back.get(name, name) for name in op.operands])
