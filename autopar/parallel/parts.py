"""Parts of a batch: what each rank brings where it doesn't bring the global batch.

A rank's part is what its program reads of the global batch: where a mesh axis splits a dimension,
the block that belongs to the rank's place along the axis. Blocks are as long as the first one, but
for the last; ranks at the same place bring the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.base.errors import InvalidInputError
from autopar.ir.deployment import Deployment
from autopar.ir.dims import dim_axes, dim_size
from autopar.ir.expr.expression import IntExpr
from autopar.ir.layout import Layout
from autopar.runtime.ports.boxes import box_shape, layout_box

Shape = tuple[int, ...]


def peers_of(layouts: Sequence[Layout], deployment: Deployment, rank: int) -> tuple[int, ...]:
    """Returns the ranks that bring the same parts as a rank, itself among them.

    Args:
        layouts: Of the tensors of a batch of any size.
        deployment: Where the ranks are.
        rank: The rank.
    """
    axes = {axis for layout in layouts for axis in layout.sharded_axes}

    def place(other: int) -> list[int]:
        coords = deployment.coords_of(other)
        return [coords[axis] for axis in sorted(axes)]

    mine = place(rank)
    return tuple(other for other in range(deployment.world_size) if place(other) == mine)


def whole_layout(
    label: str, layout: Layout, shapes: Sequence[Shape], deployment: Deployment
) -> Layout:
    """Returns the layout of the whole tensor whose parts the ranks bring.

    Args:
        label: What errors call it.
        layout: How the ranks hold another tensor of the kind, for other sizes of a batch.
        shapes: What each rank brings.
        deployment: Where the ranks are.

    Raises:
        InvalidInputError: If no tensor has these parts.
    """
    coords = [deployment.coords_of(rank) for rank in range(deployment.world_size)]
    sizes = []
    for dim, subs in enumerate(layout.dims):
        axes = dim_axes(subs)
        blocks = {
            tuple(each[axis] for axis in axes): shape[dim]
            for each, shape in zip(coords, shapes, strict=True)
        }
        sizes.append(sum(blocks.values()))
    shape = tuple(sizes)
    found = of_shape(layout, shape)
    for rank, (brought, place) in enumerate(zip(shapes, coords, strict=True)):
        read = box_shape(layout_box(found, place))
        if brought != read:
            raise InvalidInputError(
                f"the parts of {label!r} make no whole: rank {rank} was given {list(brought)}, and"
                f" of the global {list(shape)} it reads {list(read)}, as torch.chunk cuts blocks"
                f" along {found}"
            )
    return found


def of_shape(layout: Layout, shape: Sequence[IntExpr]) -> Layout:
    """Returns the layout of a tensor of a shape that is split along the same dimensions."""
    if tuple(shape) == layout.shape:
        return layout
    mapping = [dim_axes(dim) or None for dim in layout.dims]
    found = Layout.from_dims_mapping(layout.mesh, shape, mapping)
    pairs = zip(layout.dims, found.dims, strict=True)
    dims = tuple(old if dim_size(old) == dim_size(new) else new for old, new in pairs)
    return replace(found, dims=dims)
