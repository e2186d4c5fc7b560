"""Which layouts are placements of DTensors, and that both cut a tensor alike."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from autopar.ir.dims import SubDim
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.runtime.ports.boxes import layout_box, take
from autopar.runtime.state.placements import placeable, placements_of

MESH = ProcessMesh.of_shape((2, 3), ("a", "b"))


def layout(*dims: tuple[tuple[int, str], ...]) -> Layout:
    """Returns a layout from (size, axes as letters) per sub-dimension."""
    return Layout(MESH, tuple(tuple(SubDim(n, tuple(axes)) for n, axes in dim) for dim in dims))


@pytest.mark.parametrize(
    ("given", "placements"),
    [
        (layout(((5, "b"),), ((4, ""),)), (Replicate(), Shard(0))),
        (layout(((4, ""),), ((7, "a"),)), (Shard(1), Replicate())),
        (layout(((4, "a"),), ((7, "b"),)), (Shard(0), Shard(1))),
        (layout(((12, "ab"),)), (Shard(0), Shard(0))),
        (layout(((6, "b"), (4, ""))), (Replicate(), Shard(0))),
    ],
)
def test_placements_hold_the_pieces_of_the_layout(
    given: Layout, placements: tuple[object, ...]
) -> None:
    assert placements_of(given) == placements
    assert placeable(given) == given.normalized()
    shape = tuple(given.shape)
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for a, b in itertools.product(range(2), range(3)):
        piece = whole
        for at, size, placement in ((a, 2, placements[0]), (b, 3, placements[1])):
            if isinstance(placement, Shard):
                chunks = torch.chunk(piece, size, placement.dim)
                empty = piece.narrow(placement.dim, 0, 0)
                piece = chunks[at] if at < len(chunks) else empty
        assert torch.equal(take(whole, layout_box(given, {"a": a, "b": b})), piece)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        (layout(((3, ""), (4, "a"))), layout(((12, "a"),))),
        (layout(((4, "b"), (5, ""))), layout(((20, "b"),))),
        (layout(((12, "ba"),)), layout(((12, "ab"),))),
        (layout(((8, "ab"),)), layout(((8, "a"),))),
    ],
)
def test_other_layouts_have_none_but_a_neighbour(given: Layout, nearest: Layout) -> None:
    assert placements_of(given) is None
    assert placeable(given) == nearest
    assert placements_of(nearest) is not None
