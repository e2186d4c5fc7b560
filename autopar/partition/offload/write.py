"""Writes the transfers of buckets into a function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from autopar.ir import emitted
from autopar.ir.emitted import Emitted
from autopar.ir.layout import Origin
from autopar.ir.memory.transfers import PLAN
from autopar.ir.program import CALLS, Function, Op, OpDist
from autopar.partition.offload.places import Placed
from autopar.partition.offload.uses import Segment

AWAY = "in the host's memory between uses"
BACK = "back from the host's memory"


class Transfers:
    """Makes transfers of values, and names for what they leave.

    Args:
        function: The function to which they are added.

    Attributes:
        values: Its values, and those of the transfers.
    """

    def __init__(self, function: Function) -> None:
        self.values = dict(function.values)

    def op(self, transfer: Emitted, result: str, name: str, like: Op, why: str) -> Op:
        """Returns a transfer for an op, in its phase.

        Args:
            transfer: The transfer, with its operand.
            result: What it leaves.
            name: The tensor that is transferred, where that lies.
            like: The op.
            why: Why it is transferred.
        """
        dist = self.values[name].dist
        return Op(
            *transfer,
            (result,),
            None if dist is None else OpDist(dist.mesh),
            Origin("chosen", f"%{name}, {why}"),
            like.loc,
            like.stage,
            like.microbatch,
            like.phase,
            ((PLAN, name),),
        )

    def fresh(self, like: str, ending: str, why: str) -> str:
        """Adds a value like another one, and returns its name."""
        name, count = f"{like}.{ending}", 1
        while name in self.values:
            count += 1
            name = f"{like}.{ending}{count}"
        origin = Origin("chosen", f"%{like}, {why}")
        self.values[name] = replace(self.values[like], name=name, role="activation", origin=origin)
        return name


class TransferWriter:
    """Writes transfers into a function of a program.

    Args:
        function: The function.

    Attributes:
        hosts: By output, the value in the host's memory that takes its place.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._made = Transfers(function)
        self._instead: dict[int, dict[str, str]] = defaultdict(dict)
        self._before: dict[int, tuple[list[Op], ...]] = defaultdict(lambda: ([], [], [], []))
        self._behind: dict[int, list[Op]] = defaultdict(list)
        self.hosts: dict[str, str] = {}

    def add(self, buckets: Sequence[Placed], segment: Segment) -> None:
        """Adds the transfers of the buckets that a segment needs."""
        for bucket in buckets:
            back = {name: self._reload(bucket, name) for name in bucket.use.inputs}
            for at in segment:
                op = self._function.ops[at]
                read = set() if op.kind in CALLS else set(op.operands)
                self._instead[at].update({n: b for n, b in back.items() if n in read})
            for value, source in bucket.use.renewed:
                self._offload(bucket, value, source)

    def function(self) -> Function:
        """Returns the function with what was added, its outputs in the host's memory."""
        ops: list[Op] = []
        for at, op in enumerate(self._function.ops):
            ops += self._at(at)
            instead = self._instead[at]
            ops.append(op.with_operands([instead.get(name, name) for name in op.operands]))
            ops += self._behind[at]
        ops += self._at(len(self._function.ops))
        return replace(
            self._function,
            ops=tuple(ops),
            values=self._made.values,
            outputs=tuple(self.hosts.get(name, name) for name in self._function.outputs),
            aliases=tuple((self.hosts.get(o, o), source) for o, source in self._function.aliases),
        )

    def _at(self, at: int) -> list[Op]:
        """Returns what stands before an op.

        What it needs comes, if nothing ran before it, and has come; one has gone, another comes.
        """
        return [op for ops in self._before[at] for op in ops]

    def _reload(self, bucket: Placed, name: str) -> str:
        """Adds the transfer of an input to the device, and returns what has come."""
        use = bucket.use
        coming, back = self._made.fresh(name, "coming", BACK), self._made.fresh(name, "back", BACK)
        start = self._transfer(use.first, emitted.reload().with_operand(name), coming, name)
        end = self._transfer(use.first, emitted.end_reload().with_operand(coming), back, name)
        now, *_, ahead = self._before[bucket.start]
        (now if bucket.start == use.first else ahead).append(start)
        self._before[use.first][1].append(end)
        return back

    def _offload(self, bucket: Placed, value: str, source: str) -> None:
        """Adds the transfer of new content of an input to the host."""
        sent, host = self._made.fresh(value, "sent", AWAY), self._made.fresh(value, "host", AWAY)
        last = bucket.use.last
        start = emitted.offload(over=source).with_operand(value)
        end = emitted.end_offload(value).with_operand(sent)
        self._behind[last].append(self._transfer(last, start, sent, source))
        self._before[bucket.gone][2].append(self._transfer(last, end, host, source))
        self.hosts[value] = sent

    def _transfer(self, at: int, transfer: Emitted, result: str, name: str) -> Op:
        """Returns a transfer of an input for the op at a position."""
        return self._made.op(transfer, result, name, self._function.ops[at], AWAY)
