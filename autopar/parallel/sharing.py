"""Sharing: rank 0 decides, and all ranks carry it out.

To search for a plan takes long, and every rank would find the same one. So only rank 0 searches,
and its plan travels as bytes of the program format. An error travels too: no rank waits for one
that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist

from autopar.ir.deployment import Deployment
from autopar.ir.errors import AnnotationError, AutoparError, InvalidInputError, RuntimeFailure
from autopar.ir.program import Program
from autopar.ir.serde import (
    deployment_from_bytes,
    deployment_to_bytes,
    program_from_bytes,
    program_to_bytes,
)
from autopar.pipeline import Compiled

SOURCE = "the plan of rank 0"

ERRORS: tuple[type[AutoparError], ...] = (AnnotationError, InvalidInputError, RuntimeFailure)
"""The errors that are the same class on all ranks; others are their common base there."""


@dataclass(frozen=True)
class Plan:
    """What a rank needs of a compiled program.

    Attributes:
        completed: The program as it was completed.
        serial: The same with what is stored as it is stored, and without bodies.
        deployment: What the ranks run.
    """

    completed: Program
    serial: Program
    deployment: Deployment

    @classmethod
    def of(cls, compiled: Compiled) -> Plan:
        """Returns the plan of a compiled program."""
        return cls(compiled.completed, compiled.serial, compiled.deployment)

    def to_bytes(self) -> tuple[bytes, ...]:
        """Returns the plan as messages of the program format."""
        programs = (self.completed, self.serial, *self.deployment.programs)
        return deployment_to_bytes(self.deployment), *map(program_to_bytes, programs)

    @classmethod
    def from_bytes(cls, messages: Sequence[bytes]) -> Plan:
        """Returns the plan that `to_bytes` wrote.

        Raises:
            InvalidInputError: If it needs a newer autopar.
        """
        deployment, *programs = messages
        completed, serial, *local = (program_from_bytes(each, SOURCE) for each in programs)
        return cls(completed, serial, deployment_from_bytes(deployment, local, SOURCE))


def from_first(make: Callable[[], Sequence[bytes]], group: dist.ProcessGroup | None) -> list[bytes]:
    """Returns on all ranks what rank 0 makes.

    Args:
        make: Called on rank 0 alone.
        group: In which tensors on the CPU can be sent; None for that of all ranks.

    Raises:
        AutoparError: On all ranks, if `make` raises it; if it raises something else, that on rank
            0, and a RuntimeFailure on the others.
    """
    if dist.get_rank():
        kind, *messages = _receive(group)
        if kind:
            raise _error(kind.decode(), messages[0].decode())
        return messages
    try:
        messages = list(make())
    except BaseException as error:
        _send([part.encode() for part in _told(error)], group)
        raise
    _send([b"", *messages], group)
    return messages


def _told(error: BaseException) -> tuple[str, str]:
    """Returns what the other ranks are to know of an error: its class and its text."""
    if not isinstance(error, AutoparError):
        return RuntimeFailure.__name__, f"rank 0 failed: {type(error).__name__}: {error}"
    kind = next((each for each in ERRORS if isinstance(error, each)), AutoparError)
    return kind.__name__, str(error)


def _error(kind: str, text: str) -> AutoparError:
    return {each.__name__: each for each in ERRORS}.get(kind, AutoparError)(text)


def _send(messages: Sequence[bytes], group: dist.ProcessGroup | None) -> None:
    sizes = torch.tensor([len(each) for each in messages])
    dist.broadcast(torch.tensor(len(messages)), 0, group)
    dist.broadcast(sizes, 0, group)
    dist.broadcast(torch.frombuffer(bytearray(b"".join(messages)), dtype=torch.uint8), 0, group)


def _receive(group: dist.ProcessGroup | None) -> list[bytes]:
    count = torch.tensor(0)
    dist.broadcast(count, 0, group)
    sizes = torch.zeros(int(count), dtype=torch.int64)
    dist.broadcast(sizes, 0, group)
    content = torch.empty(int(sizes.sum()), dtype=torch.uint8)
    dist.broadcast(content, 0, group)
    whole, ends = content.numpy().tobytes(), sizes.cumsum(0).tolist()
    return [whole[start:end] for start, end in pairwise([0, *ends])]
