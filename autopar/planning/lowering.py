"""Lowering: from a plan to what a rank runs, before anything is done to save memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autopar.completion import Legalize
from autopar.cost import Cluster, ReshardPlanner
from autopar.ir.memory.transfers import EITHER
from autopar.ir.passes import Pass, with_options
from autopar.ir.program import Program
from autopar.partition import Coalesce, Order, Outline, Partition, Prefetch, UnrollLoops
from autopar.partition.pipeline.runs import Widths
from autopar.partition.pipeline.schedules import DEFAULT_SCHEDULE

LOWERING: tuple[type[Pass], ...] = (Partition, Coalesce, Prefetch, Outline, UnrollLoops, Order)
"""The passes behind legalization, in their order. Their options are fields of `Lowering`."""

Store = Callable[[Program], Program]
"""Says of a legalized program how its inputs and outputs are to be stored."""

Observer = Callable[[str, Program], None]
"""Called with (pass name, program) after each pass."""


def unseen(name: str, program: Program) -> None:
    """Observes nothing: the program is one of several."""


@dataclass(frozen=True)
class Lowered:
    """A plan, lowered.

    Attributes:
        serial: The completed program, in which ops are replaced by the bodies chosen for them.
        ranks: What a rank runs.
    """

    serial: Program
    ranks: Program


@dataclass(frozen=True)
class Lowering:
    """The passes between a completed program and a rank's.

    Attributes:
        cluster: The hardware.
        planner: Plans reshards on its mesh.
        phases_apart: Whether the forward pass must not wait for anything of the backward pass.
        store: Says of a legalized program how inputs and outputs are to be stored, where that isn't
            how its ops want them.
        pipeline: The mesh axis along which the stages of a pipeline lie; "" if there is none.
        schedule: In which order their parts run.
        widths: At how many indices of the axis the processes of stages are; none: at one each.
        offload: The labels of what waits in the host's memory; None where a limit decides.
        update: Who updates what waits there.
        functions: Whether tasks of a pipeline become functions.
    """

    cluster: Cluster
    planner: ReshardPlanner = field(repr=False)
    phases_apart: bool = False
    store: Store | None = None
    pipeline: str = ""
    schedule: str = DEFAULT_SCHEDULE
    offload: tuple[str, ...] | None = ()
    update: str = EITHER
    functions: bool = True
    widths: Widths = ()

    def __call__(self, completed: Program, seen: Observer = unseen) -> Lowered:
        """Returns a completed program lowered.

        Args:
            completed: The program.
            seen: Called after each pass.
        """
        legalize = Legalize(self.cluster, self.planner)
        serial = legalize(completed)
        seen(legalize.name, serial)
        if self.store is not None:
            serial = self.store(serial)
        ranks = serial
        for kind in LOWERING:
            ranks = with_options(kind, vars(self))(ranks)
            seen(kind.name, ranks)
        return Lowered(serial, ranks)

    def ranks(self, completed: Program) -> Program:
        """Returns what a rank runs of a completed program."""
        return self(completed).ranks
