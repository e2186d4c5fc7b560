"""Sharing: rank 0 decides, and all ranks carry it out.

To search for a plan takes long, and every rank would find the same one. So only rank 0 searches,
and its plan travels as bytes of the program format. An error travels too: no rank waits for one
that failed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate, pairwise

from autopar.ir.deployment import Deployment
from autopar.ir.program import Program
from autopar.ir.serde import (
    deployment_from_bytes,
    deployment_to_bytes,
    program_from_bytes,
    program_to_bytes,
)
from autopar.pipeline import Compiled

SOURCE = "the plan of rank 0"


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

    def to_bytes(self) -> bytes:
        """Returns the plan as messages of the program format, one after another."""
        programs = (self.completed, self.serial, *self.deployment.programs)
        messages = [deployment_to_bytes(self.deployment), *map(program_to_bytes, programs)]
        sizes = json.dumps([len(each) for each in messages]).encode()
        return b"\n".join((sizes, b"".join(messages)))

    @classmethod
    def from_bytes(cls, content: bytes) -> Plan:
        """Returns the plan that `to_bytes` wrote.

        Raises:
            InvalidInputError: If it needs a newer autopar.
        """
        sizes, _, whole = content.partition(b"\n")
        ends = accumulate(json.loads(sizes), initial=0)
        deployment, *programs = (whole[start:end] for start, end in pairwise(ends))
        completed, serial, *local = (program_from_bytes(each, SOURCE) for each in programs)
        return cls(completed, serial, deployment_from_bytes(deployment, local, SOURCE))
