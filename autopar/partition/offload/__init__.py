"""Offload: parameters and optimizer state that wait in the host's memory between uses.

As ZeRO-Offload and ZeRO-Infinity do (Ren et al., 2021; Rajbhandari et al., 2021), as a rewrite of a
rank's program: each phase brings what it reads to the device, bucket by bucket, ahead of the first
reader, and what is updated goes back over what it was. Or the host updates it, if that takes less
time. It works on the partitioned program behind recomputation, where it is known who reads what.

    uses            which stored tensors a phase needs, in buckets
    bodies          functions that bring what they are given
    order           updates go from bucket to bucket
    places          where transfers start and where they are awaited
    write           the transfers as ops
    host_updates    which updates the host can carry out
    host_choice     which it does
    write_on_host   these, with their transfers
    traffic         what all that takes, and what is won
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.cost import Cluster
from autopar.ir.memory.transfers import DEVICE, EITHER, HOST
from autopar.ir.program import Function, Program
from autopar.partition.offload.bodies import Body, bodies, given_directly
from autopar.partition.offload.host_choice import UpdatePrices, chosen
from autopar.partition.offload.host_updates import HostUpdate, host_updates
from autopar.partition.offload.order import by_owner, together
from autopar.partition.offload.traffic import Traffic, buckets_of, by_slice, traffic
from autopar.partition.offload.uses import owners
from autopar.partition.offload.write import TransferWriter
from autopar.partition.offload.write_on_host import with_host_updates

__all__ = ["OffloadState", "Traffic", "may_be_on_host", "traffic_of"]


@dataclass(frozen=True)
class OffloadState:
    """Moves stored inputs of a partitioned program to the host's memory.

    Attributes:
        offload: Their labels.
        updated: The labels of the parameters that the host updates.
    """

    name: ClassVar[str] = "offload"
    offload: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()

    def __call__(self, program: Program) -> Program:
        """Returns the program with its transfers."""
        names = stored_as(program, self.offload)
        if not names:
            return program
        program = given_directly(program, names)
        updates = host_updates(program, names, self.updated) if self.updated else []
        program = _in_order(program, names, updates)
        functions = {
            body.function.name: _with_transfers(program, body) for body in bodies(program, names)
        }
        program = replace(program, functions={**program.functions, **functions})
        writer = TransferWriter(program.main)
        for fixed, held in by_slice(program, names).items():
            for segment, buckets in buckets_of(program, fixed, held):
                writer.add(buckets, segment)
        return _renamed(program.with_main(writer.function()), writer.hosts)


def _with_transfers(program: Program, body: Body) -> Function:
    """Returns a function that brings what it is given of the host's memory."""
    writer = TransferWriter(body.function)
    for segment, buckets in body.buckets(program):
        writer.add(buckets, segment)
    return writer.function()


def stored_as(program: Program, labels: Iterable[str]) -> list[str]:
    """Returns the stored inputs with these labels, in the order of the program."""
    wanted = frozenset(labels)
    return [port.name for port in program.signature.inputs if port.label in wanted]


def traffic_of(
    program: Program, labels: Iterable[str], cluster: Cluster, update: str = DEVICE
) -> Traffic:
    """Returns what stored inputs take that wait in the host's memory, and what is won.

    Args:
        program: A partitioned program.
        labels: Theirs.
        cluster: Predicts seconds.
        update: Who updates them, one of `PLACES`.
    """
    names = stored_as(program, labels)
    if not names:
        return Traffic()
    program = given_directly(program, names)
    updates = chosen(program, names, cluster, update)
    on_host = UpdatePrices(program, cluster).of(updates)
    found = traffic(_in_order(program, names, updates), names, cluster, updates, on_host)
    waiting = len(set(owners(program, names).values()))
    return replace(found, waiting=waiting, is_forced=update == HOST)


def may_be_on_host(program: Program, labels: Iterable[str], cluster: Cluster) -> bool:
    """Returns whether the host updates some of these stored inputs faster than the device."""
    return bool(chosen(program, stored_as(program, labels), cluster, EITHER))


def _in_order(program: Program, names: Sequence[str], updates: Sequence[HostUpdate]) -> Program:
    """Returns a program whose updates go from one parameter to the next, those of the host last."""
    if not updates:
        return by_owner(program, names)
    known = sorted(frozenset(names).union(*(each.inputs for each in updates)))
    made = frozenset().union(*(each.ops for each in updates))
    program = program.with_main(together(program.main, made))
    program = by_owner(program, known, [each.owner for each in updates])
    program, instead = with_host_updates(program, known, updates)
    return _renamed(program, instead)


def _renamed(program: Program, instead: Mapping[str, str]) -> Program:
    """Returns a program whose outputs are called as what takes their place."""
    outputs = (replace(p, name=instead.get(p.name, p.name)) for p in program.signature.outputs)
    return replace(program, signature=replace(program.signature, outputs=tuple(outputs)))
