"""From a rank's specialized program to the code that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from autopar.ir.program import Program
from autopar.runtime.collectives.groups import Group
from autopar.runtime.execute.code import Forward
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.replay import Record, Replay, is_static
from autopar.runtime.execute.torch_compile import through_torch_compile
from autopar.runtime.execute.updates import InPlace
from autopar.runtime.failure.whereabouts import Whereabouts
from autopar.runtime.kernels.bindings import fast_kernel
from autopar.runtime.kernels.table import kernel
from autopar.runtime.ports.rates import trains
from autopar.runtime.tracing.tracer import Tracer
from autopar.runtime.tuned.tuned import can_be_tuned, tuned


@dataclass(frozen=True)
class Generator:
    """Generates code for one rank.

    Attributes:
        device: Where it computes.
        in_place: What is looked at before anything is overwritten.
        torch_compile: Whether programs run through `torch.compile`.
        whereabouts: Where the rank is; learns of all code.
        record: Records what is replayed as a CUDA graph; None if nothing is.
        tracer: Traces what runs; None if nothing does.
    """

    device: torch.device
    in_place: InPlace
    torch_compile: bool
    whereabouts: Whereabouts
    record: Record | None = None
    tracer: Tracer | None = None

    def __call__(self, groups: Mapping[str, Group], program: Program) -> Forward:
        """Returns the code of a specialized program.

        Args:
            groups: The rank's groups by name.
            program: What the rank runs.
        """
        forward = self._forward(groups, program)
        return forward if self.tracer is None else self.tracer.traced(forward)

    def _forward(self, groups: Mapping[str, Group], program: Program) -> Forward:
        # torch.compile knows all ops, and not all of torch's functions.
        find_kernel = kernel if self.torch_compile else fast_kernel
        module = emit(program, groups, self.device, self.in_place, find_kernel)
        if not self.torch_compile and can_be_tuned(program, self.device):
            found = tuned(program, module)
            self._span(program, found.module)
            self.whereabouts.add(found.module)
            return found.forward
        self._span(program, module)
        self.whereabouts.add(module)
        static = self.record is not None and is_static(program, module)
        # `forward` and not the module itself: see `control`.
        forward: Forward = module.forward
        if self.torch_compile:
            # A guard looks at a value, which ends a graph, as a fused step does.
            forward = through_torch_compile(module, not trains(program))
        if self.record is None or not static:
            return forward
        return Replay(forward, program, self.device, self.record)

    def _span(self, program: Program, module: fx.GraphModule) -> None:
        # torch.compile makes kernels of several ops.
        if self.tracer is not None and not self.torch_compile:
            self.tracer.add(program, module)
