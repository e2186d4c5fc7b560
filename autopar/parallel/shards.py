"""The parameters of a parallel module: each the rank's piece of the whole one.

They are DTensors, on which optimizers, gradient clipping and torch.distributed.checkpoint work, or
plain tensors that hold the rank's piece. Of those of other stages of a pipeline a rank holds none
of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from autopar.ir.dims import dim_axes, dim_size
from autopar.ir.expr.expression import evaluate
from autopar.ir.fixed import holds
from autopar.ir.layout import Layout
from autopar.runtime.collectives.sending import sent_to_all
from autopar.runtime.ports.boxes import Box, box_shape, layout_box, nothing_of, take
from autopar.runtime.state.placements import as_dtensor, placements_of


@dataclass(frozen=True)
class Shard:
    """How a rank holds a parameter.

    Attributes:
        shape: Shape of the whole parameter.
        layout: How the ranks hold it.
        box: This rank's piece.
        mesh, placements: What it is as a DTensor; None for a plain tensor.
    """

    shape: tuple[int, ...]
    layout: Layout
    box: Box
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] | None = None

    @property
    def copies(self) -> int:
        """Number of ranks that hold each element."""
        axes = [axis for dim in self.layout.dims for axis in dim_axes(dim)]
        return self.layout.mesh.size // self.layout.mesh.axes_size(axes)

    def wrapped(self, piece: Tensor) -> Tensor:
        """Returns a piece as a DTensor, or as it is."""
        if self.mesh is None or self.placements is None:
            return piece
        return as_dtensor(piece, self.shape, self.mesh, self.placements)

    def cut(self, whole: Tensor) -> Tensor:
        """Returns the rank's piece of a whole parameter, in memory of its own."""
        return take(whole, self.box).clone()

    def parameter(self, source: Tensor, device: torch.device) -> nn.Parameter:
        """Returns the rank's parameter, with the values of rank 0.

        Args:
            source: The whole parameter. On the meta device, so is what is returned.
            device: Where it is to be.
        """
        if source.is_meta:
            piece = torch.empty(box_shape(self.box), dtype=source.dtype, device="meta")
        else:
            piece = self.cut(of_first_rank(source, device))
        return nn.Parameter(self.wrapped(piece), requires_grad=source.requires_grad)


def shard_of(layout: Layout, coords: Mapping[str, int], mesh: DeviceMesh | None) -> Shard:
    """Returns how a rank holds a parameter.

    Args:
        layout: Of the parameter.
        coords: The rank's coordinates, and sizes that are open (see `as_coords`).
        mesh: The mesh of DTensors, of the ranks that hold it; None for plain tensors.

    Raises:
        ValueError: If a DTensor can't have this layout (see `layouts.placeable`).
    """
    placements = None if mesh is None else placements_of(layout)
    if mesh is not None and placements is None:
        raise ValueError(f"{layout} is no placement of a DTensor")
    shape = tuple(evaluate(dim_size(dim), coords) for dim in layout.dims)
    box = layout_box(layout, coords) if holds(layout.mesh.fixed, coords) else nothing_of(shape)
    return Shard(shape, layout, box, mesh, placements)


def local(tensor: Tensor) -> Tensor:
    """Returns the rank's piece of a parameter."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def of_first_rank(source: Tensor, device: torch.device) -> Tensor:
    """Returns the values that rank 0 has of a tensor, on a device."""
    alone = not dist.is_initialized() or dist.get_world_size() == 1
    if alone or dist.get_rank() == 0:
        value = source.detach().to(device).contiguous()
        return value if alone else sent_to_all(0, value)
    # A model's own memory isn't written to.
    return sent_to_all(0, torch.empty(source.shape, dtype=source.dtype, device=device))


def clip_grad_norm(
    pairs: Iterable[tuple[nn.Parameter, Shard]], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scales gradients so that their norm, over all ranks, is at most `max_norm`.

    Args:
        pairs: Parameters, and how the ranks hold them.
        max_norm: The largest norm of all gradients together.
        norm_type: 2 for the Euclidean norm, `math.inf` for the largest element.

    Returns:
        The norm before, the same on all ranks.
    """
    found = [(local(p.grad), each.copies) for p, each in pairs if p.grad is not None]
    if not found:
        return torch.tensor(0.0)
    largest = math.isinf(norm_type)
    total = torch.zeros((), dtype=torch.float32, device=found[0][0].device)
    for gradient, copies in found:
        if largest and gradient.numel():
            total = torch.maximum(total, gradient.abs().max().float())
        elif not largest:
            total = total + gradient.float().abs().pow(norm_type).sum() / copies
    if dist.is_initialized():
        dist.all_reduce(total, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    norm = total if largest else total.pow(1 / norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient, _ in found:
        gradient.mul_(scale.to(gradient.dtype))
    return norm


def whole_from(pieces: Mapping[str, Tensor], shards: Mapping[str, Shard]) -> dict[str, Tensor]:
    """Returns pieces for whole tensors in a state dict; other entries as they are."""
    found = dict(pieces)
    for name, each in shards.items():
        given = found.get(name)
        if not isinstance(given, Tensor) or isinstance(given, DTensor):
            continue
        if tuple(given.shape) == each.shape:
            found[name] = each.wrapped(each.cut(given))
        elif tuple(given.shape) == box_shape(each.box):
            found[name] = each.wrapped(given)
    return found
