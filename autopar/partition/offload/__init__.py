"""Offload: parameters and optimizer state that wait in the host's memory between uses.

As ZeRO-Offload and ZeRO-Infinity do (Ren et al., 2021; Rajbhandari et al., 2021), as a rewrite of a
rank's program: each phase brings what it reads to the device, bucket by bucket, ahead of the first
reader, and what is updated goes back over what it was. It works on the partitioned program behind
recomputation, where it is known who reads what.

    uses      which stored tensors a phase needs, in buckets
    bodies    functions that bring what they are given
    order     updates go from bucket to bucket
    places    where transfers start and where they are awaited
    write     the transfers as ops
    traffic   what they take, and what is won
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from autopar.cost import Cluster
from autopar.ir.program import Function, Program
from autopar.partition.offload.bodies import Body, bodies, given_directly
from autopar.partition.offload.order import by_owner
from autopar.partition.offload.traffic import Traffic, buckets_of, by_slice, traffic
from autopar.partition.offload.write import TransferWriter

__all__ = ["OffloadState", "Traffic", "traffic_of"]


@dataclass(frozen=True)
class OffloadState:
    """Moves stored inputs of a partitioned program to the host's memory.

    Attributes:
        offload: Their labels.
    """

    name: ClassVar[str] = "offload"
    offload: tuple[str, ...] = ()

    def __call__(self, program: Program) -> Program:
        """Returns the program with its transfers."""
        names = stored_as(program, self.offload)
        if not names:
            return program
        program = by_owner(given_directly(program, names), names)
        functions = {
            body.function.name: _with_transfers(program, body) for body in bodies(program, names)
        }
        program = replace(program, functions={**program.functions, **functions})
        writer = TransferWriter(program.main)
        for fixed, held in by_slice(program, names).items():
            for segment, buckets in buckets_of(program, fixed, held):
                writer.add(buckets, segment)
        return _with_hosts(program.with_main(writer.function()), writer.hosts)


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


def traffic_of(program: Program, labels: Iterable[str], cluster: Cluster) -> Traffic:
    """Returns what stored inputs take that wait in the host's memory, and what is won.

    Args:
        program: A partitioned program.
        labels: Theirs.
        cluster: Predicts seconds.
    """
    names = stored_as(program, labels)
    if not names:
        return Traffic()
    return traffic(by_owner(given_directly(program, names), names), names, cluster)


def _with_hosts(program: Program, hosts: dict[str, str]) -> Program:
    """Returns a program whose outputs are called as what is in the host's memory."""
    outputs = (replace(p, name=hosts.get(p.name, p.name)) for p in program.signature.outputs)
    return replace(program, signature=replace(program.signature, outputs=tuple(outputs)))
