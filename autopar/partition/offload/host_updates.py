"""Host updates: which parameters the host can update where their state waits, and by which ops.

ZeRO-Offload (Ren et al., 2021) updates on the host what waits there: gradients go down, and state
stays. What such an update is follows from the program, whatever the optimizer is. Its ops read what
waits and other numbers and tensors that don't depend on it, compute each element by itself, and
lead to new content of all that waits. What else reads their results, as a collective, has them
brought to the device; if it reads the state itself, or makes new content of it, the device updates.

A gradient goes down where it is smallest: before a conversion to 32 bits, if only the host reads
what that makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from autopar.ir.fixed import Fixed
from autopar.ir.ops.elementwise.optimizer import ON_ELEMENTS
from autopar.ir.program import Function, Op, Program
from autopar.partition.offload.uses import UPDATE, joined, owners, value_bytes

_BY_DEVICE = ""
"""Where a value is that the device computes of what a host's op made."""


@dataclass(frozen=True)
class HostUpdate:
    """The update of a parameter by the host.

    Attributes:
        owner: The parameter's label.
        fixed: The slice of the mesh that updates it.
        inputs: The stored inputs in the host's memory that it reads, numbers included.
        ops: The ops that the host computes, by their first results.
        sent: What they read besides, which is on the device.
        back: Which results are read or stored there.
    """

    owner: str
    fixed: Fixed
    inputs: frozenset[str]
    ops: frozenset[str]
    sent: tuple[str, ...]
    back: tuple[str, ...]


def host_updates(
    program: Program, names: Collection[str], wanted: Collection[str] | None = None
) -> list[HostUpdate]:
    """Returns the updates that the host can carry out, in the order of the program.

    Args:
        program: A partitioned program.
        names: The stored inputs that wait in the host's memory.
        wanted: The labels of the parameters that matter; by default all.
    """
    waiting = _waiting(program, names)
    if wanted is not None:
        waiting = {owner: inputs for owner, inputs in waiting.items() if owner in wanted}
    while waiting:
        found = _Placement(program, waiting)
        if not found.refused:
            return [found.update(owner) for owner in found.ops]
        refused = {owner: _state(program, waiting.pop(owner)) for owner in sorted(found.refused)}
        waiting.update((owner, state) for owner, state in refused.items() if state)
    return []


def _state(program: Program, inputs: AbstractSet[str]) -> frozenset[str]:
    """Returns the state without the parameter, if it can be told apart and has tensors.

    The device may then need a parameter that waits, as to gather it.
    """
    values = program.main.values
    state = frozenset(n for n in inputs if values[n].role == "optimizer_state")
    return state if state < inputs and any(values[n].shape for n in state) else frozenset()


def _waiting(program: Program, names: Collection[str]) -> dict[str, frozenset[str]]:
    """Returns by parameter what of it and of its state waits, if all of that state does.

    Numbers, as the count of steps, are then there too.
    """
    ports = {p.name: p for p in program.signature.inputs}
    of = owners(program, [n for n, p in ports.items() if n in names or p.role == "optimizer_state"])
    inputs: dict[str, set[str]] = {}
    for name, owner in of.items():
        inputs.setdefault(owner, set()).add(name)
    return {
        owner: frozenset(found)
        for owner, found in inputs.items()
        if not found.isdisjoint(names) and all(n in names or not ports[n].shape for n in found)
    }


def in_buckets(function: Function, updates: Iterable[HostUpdate]) -> Iterator[list[HostUpdate]]:
    """Yields updates in buckets of what goes down for them.

    Args:
        function: The function that has them.
        updates: The updates in their order.
    """

    def nbytes(update: HostUpdate) -> int:
        return sum(value_bytes(function.values[name]) for name in update.sent)

    for _, alike in groupby(updates, key=lambda update: update.fixed):
        yield from joined(list(alike), nbytes)


class _Placement:
    """Where the ops of updates run, if the host carries these out.

    Args:
        program: A partitioned program.
        waiting: By parameter, what waits in the host's memory.

    Attributes:
        ops: By parameter, the ops that the host computes.
        refused: The parameters that the host can't update so.
    """

    def __init__(self, program: Program, waiting: Mapping[str, AbstractSet[str]]) -> None:
        self.main = program.main
        self.waiting = waiting
        self.where = {name: owner for owner, inputs in waiting.items() for name in inputs}
        self.ops: dict[str, list[Op]] = {}
        self.refused: set[str] = set()
        self._inputs = frozenset(self.where)
        self._read: set[str] = set()
        self._outputs = frozenset(self.main.outputs)
        for op in self.main.ops:
            self._place(op)
        self._refuse(self._inputs & self._read)
        for output, source in self.main.aliases:
            if source in self._inputs and self.where.get(output) != self.where[source]:
                self._refuse((source,))
        self.refused.update(waiting.keys() - self.ops.keys())

    def _refuse(self, inputs: Iterable[str]) -> None:
        self.refused.update(self.where[name] for name in inputs)

    def _place(self, op: Op) -> None:
        if op.phase != UPDATE:
            self._read_elsewhere(op)
            return
        places = {self.where[name] for name in op.operands if name in self.where}
        if not places:
            return
        owner = places.pop() if len(places) == 1 and op.kind in ON_ELEMENTS else _BY_DEVICE
        if owner == _BY_DEVICE:
            self._read.update(op.operands)
        else:
            self.ops.setdefault(owner, []).append(op)
        self.where.update(dict.fromkeys(op.results, owner))

    def _read_elsewhere(self, op: Op) -> None:
        """Notes what another phase reads, to which transfers bring stored tensors alone."""
        for name in op.operands:
            if name not in self._inputs or not self.main.values[name].shape:
                owner = self.where.get(name)
                if owner is not None:
                    self.refused.update([owner] if owner != _BY_DEVICE else self.waiting)

    def update(self, owner: str) -> HostUpdate:
        """Returns the update of a parameter that isn't refused."""
        ops = self.ops[owner]
        early = [op for name in self._sent(owner, ops) for op in self._conversions(name, ops)]
        ops, dist = [*early, *ops], ops[-1].dist
        return HostUpdate(
            owner,
            () if dist is None else dist.mesh.fixed,
            frozenset(self.waiting[owner]),
            frozenset(op.results[0] for op in ops),
            tuple(self._sent(owner, ops)),
            tuple(name for op in ops for name in op.results if name in self._needed),
        )

    @cached_property
    def _needed(self) -> AbstractSet[str]:
        """What the device reads or stores of what the host computes."""
        stay = {output for output, source in self.main.aliases if source in self._inputs}
        return self._read | (self._outputs - stay)

    def _sent(self, owner: str, ops: Iterable[Op]) -> Iterable[str]:
        """Returns what ops of the host read that is on the device."""
        here = frozenset(self.waiting[owner]).union(*(op.results for op in ops))
        return dict.fromkeys(n for op in ops for n in op.operands if n not in here)

    def _conversions(self, name: str, readers: Sequence[Op]) -> list[Op]:
        """Returns the ops before a value that only the host needs, if less is sent so."""
        ops: list[Op] = []
        best, least = 0, value_bytes(self.main.values[name])
        while (op := self._maker(name, [*ops, *readers])) is not None:
            (name,) = (n for n in op.operands if self.main.values[n].shape)
            ops.insert(0, op)
            if value_bytes(self.main.values[name]) < least:
                best, least = len(ops), value_bytes(self.main.values[name])
        return ops[len(ops) - best :]

    def _maker(self, name: str, readers: Sequence[Op]) -> Op | None:
        """Returns the op that makes a tensor for these readers alone of one other tensor."""
        op, shape = self._makers.get(name), self.main.values[name].shape
        if op is None or not shape or name in self._outputs or len(op.results) > 1:
            return None
        tensors = [n for n in op.operands if self.main.values[n].shape]
        others = [each for each in self._readers[name] if each not in readers]
        fits = op.phase == UPDATE and op.kind in ON_ELEMENTS and len(tensors) == 1
        return op if fits and not others else None

    @cached_property
    def _makers(self) -> Mapping[str, Op]:
        return self.main.producers()

    @cached_property
    def _readers(self) -> Mapping[str, Sequence[Op]]:
        return self.main.consumers()
