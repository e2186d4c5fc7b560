"""One compiled program of a module: for a mode and for the shapes of a batch, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch import Differentiable
from autopar.ir.assumptions import assumption_ports
from autopar.ir.program import Program
from autopar.parallel.job import Job
from autopar.parallel.shards import shard_of
from autopar.parallel.sharing import Plan
from autopar.parallel.split import first_half, known_without, split
from autopar.parallel.undoing import Undoing
from autopar.runtime.execute.emit import emit
from autopar.runtime.execute.specialize import specialize_functions
from autopar.runtime.execute.torch_compile import through_torch_compile
from autopar.runtime.execute.updates import abandoned_raised
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.boxes import box_shape, take
from autopar.runtime.ports.index_bounds import IndexBounds
from autopar.runtime.ports.ports import port_box, seed_input
from autopar.runtime.ports.staging import moved
from autopar.runtime.ports.writing_back import check_writable
from autopar.runtime.state.placements import is_split, placements_of
from autopar.runtime.state.wholes import whole_of

Code = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Wiring:
    """What a variant reads of the module and of a call, and what it gives back.

    Attributes:
        parameters, buffers, constants, batch, tangents: Names of the program's inputs, each kind
            in the order in which the variant gets it.
        seed: Name of the seed; None if nothing is drawn.
        outputs: Number of outputs.
        updated: The buffers and parameters with new contents.
        gradients: For each parameter, and after them for each tensor of the batch: the position
            of its gradient in what the backward program returns; None without one.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    constants: tuple[str, ...]
    batch: tuple[str, ...]
    tangents: Mapping[int, str]
    seed: str | None
    outputs: int
    updated: tuple[str, ...]
    gradients: tuple[int | None, ...]


def wire(captured: Differentiable) -> Wiring:
    """Returns how a captured module is connected."""
    by_role: dict[str, list[str]] = {}
    for port in captured.program.signature.inputs:
        # A buffer that no state dict has is a constant to the compiler, or state if it changes.
        unsaved = port.role in ("constant", "state") and port.name not in captured.constants
        by_role.setdefault("buffer" if unsaved else port.role, []).append(port.name)
    seed = seed_input(captured.program)
    parameters, batch = by_role.get("parameter", []), by_role.get("input", [])
    returned = [*captured.batch_gradients.values(), *captured.gradients.values()]
    names = [captured.gradients.get(name) for name in parameters]
    names.extend(captured.batch_gradients.get(at) for at in range(len(batch)))
    return Wiring(
        tuple(parameters),
        tuple(by_role.get("buffer", [])),
        tuple(by_role.get("constant", [])),
        tuple(batch),
        captured.tangents,
        None if seed is None else seed.name,
        len(captured.outputs),
        tuple(captured.updates),
        tuple(None if name is None else returned.index(name) for name in names),
    )


class Variant:
    """One compiled program, emitted for this rank.

    Args:
        captured: The module as it was captured.
        plan: The programs.
        job: The ranks.
        mesh: The mesh of DTensors; None in a job of one process.
        torch_compile: Whether the programs run through `torch.compile`.

    Attributes:
        captured: The module as it was captured.
        deployment: The programs.
        wiring: What the program reads and gives back.
        boxes: The rank's piece of each input.
        layouts: How the ranks hold the tensors of a call, in order.
        written: The inputs that the module writes to.
        split: How the rank holds the outputs that are split, by position.
        refuses_late: Whether only the backward program finds that some calls are refused.
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
        self._bounds = IndexBounds(plan.serial)
        self.job = job
        self.device = device = job.device
        groups = job.groups(deployment)
        program, coords = deployment.program_of(job.rank), deployment.coords_of(job.rank)
        self.boxes = {port.name: port_box(port, coords) for port in program.signature.inputs}
        values = plan.serial.main.values
        layouts = {name: value.dist for name, value in values.items() if value.dist is not None}
        self.layouts = [layouts[name] for name in wiring.batch]
        self.placements = {name: placements_of(layouts[name]) for name in wiring.batch}
        self.split = {
            at: shard_of(layouts[name], coords, mesh)
            for at, name in enumerate(captured.returned)
            if mesh is not None and is_split(layouts[name])
        }
        self.mesh = mesh
        self.written = tuple(wiring.batch[at] for at in captured.written)
        self.constants = {
            name: take(captured.constants[name], self.boxes[name]).to(device)
            for name in wiring.constants
        }

        def code(half: Program) -> Code:
            module = emit(specialize_functions(half, coords), groups, device)
            job.note(module)
            return through_torch_compile(module, whole=True) if torch_compile else module.forward

        late = set(wiring.tangents.values())
        returned = program.main.outputs
        assumed = [port.name for port in assumption_ports(program, program.main)]
        end = len(returned) - len(assumed)
        updates = returned[end - len(wiring.updated) : end]
        known = known_without(program, assumed, late)
        self.refuses_late = len(known) < len(assumed)
        outputs = (*returned[: wiring.outputs], *updates, *known)
        self._known = len(known)
        self.saved: tuple[str, ...] = ()
        if late:
            halves = split(program, outputs, late)
            self.saved = halves.saved
            self._forward, self._backward = code(halves.forward), code(halves.backward)
        else:
            self._forward = code(first_half(program, outputs, late))
        self.order = tuple(name for name in program.main.inputs if name not in late)

    def check(self, batch: Sequence[Tensor]) -> None:
        """Refuses global tensors of a call that the program can't take.

        Those are with an index that is out of range, for which none are looked at if there are
        DTensors among them, or the module writes to them and they can't be written to.

        Raises:
            InvalidInputError: If there is one.
        """
        if batch and not any(isinstance(each, DTensor) for each in batch):
            self._bounds.check(dict(zip(self.wiring.batch, batch, strict=False)))
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

    def write_back(
        self, batch: Sequence[Tensor], contents: Sequence[Tensor], *, parts: bool
    ) -> None:
        """Writes to the tensors of a call what the module writes there, and as autograd sees it.

        Args:
            batch: The tensors of the call.
            contents: What is written, global.
            parts: Whether the tensors are the rank's pieces.
        """
        for at, content in zip(self.captured.written, contents, strict=True):
            box = self.boxes[self.wiring.batch[at]]
            batch[at].copy_(take(content, box) if parts else content)

    def forward(
        self,
        stored: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        seed: int,
        *,
        parts: bool = False,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Runs the forward program, and writes the new contents of buffers and parameters.

        Args:
            stored: The rank's pieces of parameters and buffers.
            batch: The tensors of the call.
            seed: What random numbers depend on.
            parts: Whether the tensors are the rank's pieces, and not global.

        Returns:
            The global outputs, and what the backward program needs.
        """
        wiring = self.wiring
        given: dict[str, Tensor] = {**stored, **self.constants}
        for name, tensor in zip(wiring.batch, batch, strict=True):
            piece = tensor.detach() if parts else self._piece(name, tensor.detach())
            given[name] = moved(piece.contiguous(), self.device)
            if name in self.written:  # Backward may read what was there before.
                given[name] = given[name].clone()
        if wiring.seed is not None:
            given[wiring.seed] = moved(torch.tensor(seed), self.device)
        with abandoned_raised(), self.job.reported():
            results = self._forward(*(given[name] for name in self.order))
        end = wiring.outputs + len(wiring.updated)
        updates = results[wiring.outputs : end]
        saved = list(results[end + self._known :])
        for at, name in enumerate(self.saved):
            if name in wiring.updated:
                saved[at] = saved[at].clone()
        for name, content in zip(wiring.updated, updates, strict=True):
            stored[name].copy_(content)
        held = set(map(id, (*given.values(), *batch)))
        outputs = list(_apart(results[: wiring.outputs], held))
        for at, each in self.split.items():
            outputs[at] = each.wrapped(outputs[at])
        return tuple(outputs), tuple(saved)

    def backward(
        self, saved: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """Runs the backward program.

        Args:
            saved: What the forward program left.
            gradients: Of all outputs; None for zero. Of those that can't have one they don't
                count.

        Returns:
            The rank's piece of each parameter's gradient, and after them the global gradient of
            each tensor of the call; None where there is none.
        """
        tangents = [
            self._tangent(at, name, gradients[at]) for at, name in self.wiring.tangents.items()
        ]
        with abandoned_raised(), self.job.reported():
            results = self._backward(*saved, *tangents)
        return tuple(None if at is None else results[at] for at in self.wiring.gradients)

    def parts_of(self, batch: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Returns the rank's pieces of what is global: gradients of the tensors of a call."""
        return tuple(
            None if each is None else take(each, self.boxes[name])
            for name, each in zip(self.wiring.batch, batch, strict=True)
        )

    def _piece(self, name: str, tensor: Tensor) -> Tensor:
        """Returns the rank's piece of a tensor of a call."""
        if isinstance(tensor, DTensor):
            if tensor.device_mesh == self.mesh and tensor.placements == self.placements[name]:
                return tensor.to_local()
            tensor = self._whole(tensor)
        return take(tensor, self.boxes[name])

    def _whole(self, tensor: DTensor) -> Tensor:
        with self.job.talking():
            return whole_of(tensor)

    def _tangent(self, at: int, name: str, gradient: Tensor | None) -> Tensor:
        """Returns the rank's piece of the gradient of an output."""
        box = self.boxes[name]
        if gradient is None:
            dtype = TORCH_DTYPES[self.captured.program.main.values[name].dtype]
            return torch.zeros(box_shape(box), dtype=dtype, device=self.device)
        if isinstance(gradient, DTensor):
            wanted = self.split.get(at)
            here = (gradient.device_mesh, tuple(gradient.placements))
            if wanted is not None and here == (wanted.mesh, wanted.placements):
                return gradient.to_local()
            gradient = self._whole(gradient)
        return moved(take(gradient, box), self.device)


def _apart(outputs: Sequence[Tensor], held: set[int]) -> Iterator[Tensor]:
    """Yields outputs, each a tensor of its own, as autograd wants them."""
    for each in outputs:
        yield each.clone() if id(each) in held else each
        held.add(id(each))


class Call(torch.autograd.Function):
    """A call of a variant, as autograd sees it.

    `apply` takes the variant, the buffers, the seed, what cuts parameters and makes gradients of
    them, and then the parameters and the tensors of the call.
    """

    @staticmethod
    def forward(ctx: Any, call: VariantCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `Variant.forward`."""
        variant = call.variant
        names = variant.wiring.parameters
        stored = dict(zip(names, map(call.local, tensors[: len(names)]), strict=True))
        written = variant.wiring.updated if variant.refuses_late else ()
        stored = {**call.buffers, **stored}
        ctx.undoing = Undoing(stored[name] for name in written)
        outputs, saved = variant.forward(stored, tensors[len(names) :], call.seed, parts=call.parts)
        ctx.undoing.written()
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.call = call
        differentiable = variant.wiring.tangents
        ctx.mark_non_differentiable(
            *(each for at, each in enumerate(outputs) if at not in differentiable)
        )
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """See `Variant.backward`."""
        call: VariantCall = ctx.call
        names = call.variant.wiring.parameters
        try:
            found = call.variant.backward(ctx.saved_tensors, gradients)
        except InvalidInputError:
            ctx.undoing.undo()
            call.forget()
            raise
        batch = found[len(names) :]
        if call.parts:
            batch = call.variant.parts_of(batch)
        wrapped = [
            None if each is None else call.wrapped(name, each)
            for name, each in zip(names, found, strict=False)
        ]
        return None, *wrapped, *batch


@dataclass(frozen=True)
class VariantCall:
    """What a call needs besides tensors with gradients.

    Attributes:
        variant: The variant.
        buffers: The rank's pieces of buffers, by name.
        seed: What random numbers depend on.
        parts: Whether the tensors of the call are the rank's pieces.
        local: Returns the rank's piece of a parameter.
        wrapped: Returns a piece of a gradient, by the parameter's name, as what the parameter is.
        forget: Takes back that the call has drawn random numbers.
    """

    variant: Variant
    buffers: Mapping[str, Tensor]
    seed: int
    parts: bool
    local: Callable[[Tensor], Tensor]
    wrapped: Callable[[str, Tensor], Tensor]
    forget: Callable[[], None]
