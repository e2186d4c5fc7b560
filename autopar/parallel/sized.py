"""What a variant runs in calls of the same sizes: any, where its program leaves some open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from autopar.ir.expr.at_sizes import NO_SIZES, Sizes, as_coords, layout_at
from autopar.ir.layout import Layout
from autopar.parallel.shards import shard_of
from autopar.parallel.variant import Variant
from autopar.runtime.execute.updates import abandoned_raised
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.boxes import box_shape, take
from autopar.runtime.ports.ports import port_box
from autopar.runtime.ports.staging import moved
from autopar.runtime.state.placements import is_split
from autopar.runtime.state.wholes import whole_of


class SizedVariant:
    """A variant at sizes.

    Args:
        variant: The variant.
        sizes: What it leaves open, by name.

    Attributes:
        variant: The variant.
        sizes: What it leaves open, by name.
        boxes: The rank's piece of each input.
        split: How the rank holds the outputs that are split, by position.
    """

    def __init__(self, variant: Variant, sizes: Sizes = NO_SIZES) -> None:
        self.variant = variant
        self.sizes = sizes
        self.wiring = variant.wiring
        self._device = variant.device
        here = {**variant.coords, **as_coords(self.sizes)}
        ports = variant.program.signature.inputs
        self.boxes = {port.name: port_box(port, here) for port in ports}
        self.split = {
            at: shard_of(layout, here, variant.mesh)
            for at, layout in enumerate(variant.returned)
            if variant.mesh is not None and is_split(layout)
        }
        self._forward = variant.forward.at(self.sizes)
        self._backward = None if variant.backward is None else variant.backward.at(self.sizes)

    def check(self, batch: Sequence[Tensor]) -> None:
        """See `Variant.check`."""
        self.variant.check(batch, self.sizes)

    def takes(self, layouts: Sequence[Layout]) -> bool:
        """Whether the ranks hold the tensors of a call so; with no layouts, it may be any way."""
        held = [layout_at(each, self.sizes).normalized() for each in self.variant.layouts]
        return not layouts or held == [each.normalized() for each in layouts]

    def write_back(
        self, batch: Sequence[Tensor], contents: Sequence[Tensor], *, parts: bool
    ) -> None:
        """Writes to the tensors of a call what the module writes there, and as autograd sees it.

        Args:
            batch: The tensors of the call.
            contents: What is written, global.
            parts: Whether the tensors are the rank's pieces.
        """
        for at, content in zip(self.variant.captured.written, contents, strict=True):
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
        variant, wiring = self.variant, self.wiring
        given = self._given(stored, batch, seed, parts=parts)
        with abandoned_raised(), variant.job.reported():
            results = self._forward(*(given[name] for name in variant.order))
        end = wiring.outputs + len(wiring.updated)
        updates = results[wiring.outputs : end]
        saved = list(results[end + variant.known :])
        for at, name in enumerate(variant.saved):
            if name in wiring.updated:
                saved[at] = saved[at].clone()
        for name, content in zip(wiring.updated, updates, strict=True):
            stored[name].copy_(content)
        held = set(map(id, (*given.values(), *batch)))
        outputs = list(_apart(results[: wiring.outputs], held))
        for at, each in self.split.items():
            outputs[at] = each.wrapped(outputs[at])
        return tuple(outputs), tuple(saved)

    def _given(
        self, stored: Mapping[str, Tensor], batch: Sequence[Tensor], seed: int, *, parts: bool
    ) -> dict[str, Tensor]:
        """Returns what the forward program is given, by name."""
        given: dict[str, Tensor] = {**stored, **self.variant.constants}
        for name, tensor in zip(self.wiring.batch, batch, strict=True):
            piece = tensor.detach() if parts else self._piece(name, tensor.detach())
            given[name] = moved(piece.contiguous(), self._device)
            if name in self.variant.written:  # Backward may read what was there before.
                given[name] = given[name].clone()
        if self.wiring.seed is not None:
            given[self.wiring.seed] = moved(torch.tensor(seed), self._device)
        return given

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
        assert self._backward is not None
        tangents = [
            self._tangent(at, name, gradients[at]) for at, name in self.wiring.tangents.items()
        ]
        with abandoned_raised(), self.variant.job.reported():
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
        variant = self.variant
        if isinstance(tensor, DTensor):
            if (tensor.device_mesh, tensor.placements) == (variant.mesh, variant.placements[name]):
                return tensor.to_local()
            tensor = self._whole(tensor)
        return take(tensor, self.boxes[name])

    def _whole(self, tensor: DTensor) -> Tensor:
        with self.variant.job.talking():
            return whole_of(tensor)

    def _tangent(self, at: int, name: str, gradient: Tensor | None) -> Tensor:
        """Returns the rank's piece of the gradient of an output."""
        box = self.boxes[name]
        if gradient is None:
            dtype = TORCH_DTYPES[self.variant.captured.program.main.values[name].dtype]
            return torch.zeros(box_shape(box), dtype=dtype, device=self._device)
        if isinstance(gradient, DTensor):
            wanted = self.split.get(at)
            here = (gradient.device_mesh, tuple(gradient.placements))
            if wanted is not None and here == (wanted.mesh, wanted.placements):
                return gradient.to_local()
            gradient = self._whole(gradient)
        return moved(take(gradient, box), self._device)


def sized(variant: Variant, shapes: tuple[tuple[int, ...], ...]) -> SizedVariant:
    """Returns a variant for the global shapes of the tensors of a call.

    Raises:
        InvalidInputError: If it isn't for these.
    """
    return SizedVariant(variant, variant.sizes_of(shapes))


def _apart(outputs: Sequence[Tensor], held: set[int]) -> Iterator[Tensor]:
    """Yields outputs, each a tensor of its own, as autograd wants them."""
    for each in outputs:
        yield each.clone() if id(each) in held else each
        held.add(id(each))
