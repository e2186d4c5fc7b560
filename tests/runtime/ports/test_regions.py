"""A piece as rectangles: together they are the piece, and touching ones are one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from autopar.runtime.ports.boxes import Box, Extent, box_shape, take
from autopar.runtime.ports.regions import Region, regions


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    size = draw(st.integers(0, 4))
    start = draw(st.integers(0, size))
    return Extent(size, start, draw(st.integers(0, size - start)))


boxes = st.lists(st.lists(extents(), max_size=3).map(tuple), max_size=3).map(tuple)


@given(boxes)
def test_the_rectangles_make_up_the_piece(box: Box) -> None:
    shape = [torch.Size([extent.size for extent in dim]).numel() for dim in box]
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    piece = torch.full(box_shape(box), -1)
    for region in regions(box):
        source = whole
        for dim, (start, size) in enumerate(zip(region.offsets, region.sizes, strict=True)):
            source = source.narrow(dim, start, size)
        region.of(piece).copy_(source)
    assert torch.equal(piece, take(whole, box))


def test_touching_intervals_are_one() -> None:
    heads = (Extent(12, 3, 3), Extent(64, 0, 64))
    assert regions((heads, (Extent(5, 0, 5),))) == [Region((192, 0), (192, 5), (0, 0))]


def test_a_part_of_each_of_three_fused_matrices_is_three_rectangles() -> None:
    fused = (Extent(3, 0, 3), Extent(8, 4, 4))
    assert regions((fused,)) == [
        Region((4,), (4,), (0,)),
        Region((12,), (4,), (4,)),
        Region((20,), (4,), (8,)),
    ]
