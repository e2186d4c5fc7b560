"""Lowering: from a plan to what a rank runs, before anything is done to save memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from autopar.completion import Legalize
from autopar.cost import Cluster, ReshardPlanner
from autopar.ir.memory.transfers import EITHER
from autopar.ir.passes import Pass, with_options
from autopar.ir.program import Program
from autopar.ir.unroll import has_loops
from autopar.partition import (
    Coalesce,
    Order,
    Outline,
    Partition,
    Prefetch,
    RepeatLoops,
    UnrollLoops,
)
from autopar.partition.pipeline.runs import Widths
from autopar.partition.pipeline.schedules import DEFAULT_SCHEDULE
from autopar.partition.recompute import Looped

LOOPED: tuple[type[Pass], ...] = (Partition, Coalesce, Prefetch, Outline)
"""The passes behind legalization that see what microbatches do once, in their order."""

APART: tuple[type[Pass], ...] = (RepeatLoops, UnrollLoops, Order)
"""Those behind, of which one repeats what microbatches do, or others tell them apart."""

LOWERING = (*LOOPED, *APART)
"""All passes behind legalization. Their options are fields of `Lowering`."""

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
        looped: The same, before microbatches are told apart; None if there are none in a loop.
    """

    serial: Program
    ranks: Program
    looped: Looped | None = None


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
        ranks = self._through(LOOPED, serial, seen)
        finished = self._finished(ranks, seen)
        if not (self.functions and has_loops(ranks.main)):
            return Lowered(serial, finished)
        return Lowered(serial, finished, Looped(ranks, finished, self._finished))

    def _finished(self, program: Program, seen: Observer = unseen) -> Program:
        """Returns what a rank runs of a program in which microbatches are in a loop."""
        return self._through(APART, program, seen)

    def _through(self, passes: Iterable[type[Pass]], program: Program, seen: Observer) -> Program:
        for kind in passes:
            program = with_options(kind, vars(self))(program)
            seen(kind.name, program)
        return program
