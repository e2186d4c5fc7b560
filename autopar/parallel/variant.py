"""One compiled program of a module on one rank: for a mode, and for the shapes of a batch or all.

What it runs in calls of given sizes is in `sized`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Differentiable
from autopar.ir.assumptions import assumption_ports
from autopar.ir.expr.at_sizes import Sizes
from autopar.ir.layout import Layout
from autopar.ir.program import Program, Signature
from autopar.parallel.job import Job
from autopar.parallel.opening import sizes_of_call
from autopar.parallel.sharing import Plan
from autopar.parallel.split import first_half, known_without, split
from autopar.parallel.wiring import wire
from autopar.runtime.execute.code import Code, Forward
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.torch_compile import through_torch_compile
from autopar.runtime.ports.boxes import take
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.ports.ports import port_box
from autopar.runtime.ports.writing_back import check_writable
from autopar.runtime.state.placements import placements_of


class Variant:
    """One compiled program, for this rank.

    Args:
        captured: The module as it was captured.
        plan: The programs.
        job: The ranks.
        mesh: The mesh of DTensors; None in a job of one process.
        torch_compile: Whether the programs run through `torch.compile`.

    Attributes:
        captured: The module as it was captured.
        deployment: The programs.
        program: The rank's program.
        coords: The rank's coordinates.
        wiring: What the program reads and gives back.
        layouts: How the ranks hold the tensors of a call, in order.
        returned: How they hold what is returned, in order.
        placements: What the tensors of a call are as DTensors, by name.
        written: The inputs that the module writes to.
        constants: The rank's pieces of what the code holds.
        order: Names of the inputs of the forward program.
        saved: Names of what the forward program leaves to the backward program.
        known: Number of assumptions that the forward program looks at.
        refuses_late: Whether only the backward program finds that some calls are refused.
        forward: The code of the forward program.
        backward: The code of the backward program, if there is one.
    """

    def __init__(
        self,
        captured: Differentiable,
        plan: Plan,
        job: Job,
        mesh: DeviceMesh | None,
        *,
        torch_compile: bool = False,
    ) -> None:
        self.captured = captured
        self.deployment = deployment = plan.deployment
        self.wiring = wiring = wire(captured)
        self.job = job
        self.mesh = mesh
        self._torch_compile = torch_compile
        self._groups = job.groups(deployment)
        self._bounds = IndexBounds(plan.serial)
        self._calls = _calls_of(plan.serial)
        self.program = deployment.program_of(job.rank)
        self.coords = deployment.coords_of(job.rank)
        self._lay_out(plan.serial)
        self._split(set(wiring.tangents.values()))

    def _lay_out(self, serial: Program) -> None:
        values = serial.main.values
        layouts: dict[str, Layout] = {
            name: value.dist for name, value in values.items() if value.dist is not None
        }
        self.layouts = [layouts[name] for name in self.wiring.batch]
        self.returned = [layouts[name] for name in self.captured.returned]
        self.placements = {name: placements_of(layouts[name]) for name in self.wiring.batch}
        self.written = tuple(self.wiring.batch[at] for at in self.captured.written)
        ports = {port.name: port for port in self.program.signature.inputs}
        constants = self.captured.constants
        self.constants = {
            name: take(constants[name], port_box(ports[name], self.coords)).to(self.job.device)
            for name in self.wiring.constants
        }

    def _split(self, late: set[str]) -> None:
        """Takes the forward program, and what comes late, apart."""
        program, wiring = self.program, self.wiring
        returned = program.main.outputs
        assumed = [port.name for port in assumption_ports(program, program.main)]
        end = len(returned) - len(assumed)
        updates = returned[end - len(wiring.updated) : end]
        known = known_without(program, assumed, late)
        self.known = len(known)
        self.refuses_late = self.known < len(assumed)
        outputs = (*returned[: wiring.outputs], *updates, *known)
        self.saved: tuple[str, ...] = ()
        self.backward: Code | None = None
        if late:
            halves = split(program, outputs, late)
            self.saved = halves.saved
            self.forward, self.backward = self._code(halves.forward), self._code(halves.backward)
        else:
            self.forward = self._code(first_half(program, outputs, late))
        self.order = tuple(name for name in program.main.inputs if name not in late)

    def _code(self, half: Program) -> Code:
        return Code(half, self.coords, self._generated)

    def _generated(self, half: Program) -> Forward:
        module = emit(half, self._groups, self.job.device)
        self.job.note(module)
        return through_torch_compile(module, whole=True) if self._torch_compile else module.forward

    @property
    def device(self) -> torch.device:
        """Where the rank computes."""
        return self.job.device

    def sizes_of(self, shapes: Sequence[Sequence[int]]) -> Sizes:
        """Returns what is open, at the global shapes of the tensors of a call.

        Raises:
            InvalidInputError: If the program isn't for these.
        """
        return sizes_of_call(self._calls, shapes)

    def check(self, batch: Sequence[Tensor], sizes: Sizes) -> None:
        """Refuses global tensors of a call that the program can't take.

        Those are with an index that is out of range, for which none are looked at if there are
        DTensors among them, or the module writes to them and they can't be written to.

        Raises:
            InvalidInputError: If there is one.
        """
        if batch and not any(isinstance(each, DTensor) for each in batch):
            self._bounds.check(dict(zip(self.wiring.batch, batch, strict=False)), sizes)
        if batch:
            self._check_written(dict(zip(self.wiring.batch, batch, strict=False)))

    def _check_written(self, batch: Mapping[str, Tensor]) -> None:
        for name in self.written:
            if isinstance(batch[name], DTensor):
                raise InvalidInputError(
                    f"forward writes to {name!r}, which is a DTensor; hand over a plain tensor"
                )
        check_writable(self.written, batch)

    def check_parts(self) -> None:
        """Refuses parts of tensors to which the module writes what has a gradient.

        Raises:
            InvalidInputError: If it does: a rank's part would give one of its own.
        """
        for name, content in zip(
            self.written, range(len(self.captured.returned), self.wiring.outputs), strict=True
        ):
            if content in self.wiring.tangents:
                raise InvalidInputError(
                    f"forward writes what has a gradient to {name!r}; hand over global tensors"
                    " (without local=), or call the module in torch.no_grad()"
                )


def _calls_of(serial: Program) -> Program:
    """Returns a program whose only inputs are the tensors of a call, by name."""
    ports = (port for port in serial.signature.inputs if port.role == "input")
    inputs = tuple(replace(port, label=port.name) for port in ports)
    return Program({}, Signature(inputs), relations=serial.relations)
