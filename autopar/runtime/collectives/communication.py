"""Collectives on torch's functional collectives, right on every backend and for every dtype.

Backends have gaps, which `carriers` and `reducing` close. They want blocks of one size: uneven ones
are padded to the largest one and cut afterwards. Gloo scatters a reduction by reducing all of it,
so each block is sent to who reduces it.

All functions return new contiguous tensors, can be captured by `torch.compile(fullgraph=True)`,
and skip communication only where every member of the group sees that there is nothing to send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from autopar.ir.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    PERMUTE,
    REDISTRIBUTE,
    REDUCE_SCATTER,
    TRANSFER,
)
from autopar.ir.rules.numbering import Numbering, permuted
from autopar.ir.rules.redistribution import Redistribution
from autopar.ir.rules.window import Fill, Piece, Window
from autopar.runtime.collectives.async_collectives import (
    end_broadcast,
    end_gather,
    end_scatter,
    end_transfer,
    start_broadcast,
    start_gather,
    start_scatter,
    start_transfer,
)
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.monoids import reduce_tensors
from autopar.runtime.collectives.pieces import exchanged, in_rank_order
from autopar.runtime.collectives.reducing import all_reduce, summable
from autopar.runtime.collectives.windows import joined, read_piece
from autopar.runtime.ports.boxes import blocks


def all_gather(x: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """Returns the members' blocks of `dim`, whose global size is `size`, one after another."""
    dim %= x.ndim
    shape = list(x.shape)
    shape[dim] = size
    if group.size == 1 or prod(shape) == 0:
        return x.new_empty(shape) if group.size > 1 else x
    return end_gather(start_gather(x, dim, size, group), dim, size, x.dtype, group)


def reduce_scatter(x: Tensor, dim: int, monoid: str, group: Group) -> Tensor:
    """Returns the rank's block of `dim` of the reduction of the members' tensors."""
    dim %= x.ndim
    size = x.shape[dim]
    if group.size == 1 or x.numel() == 0:
        return x.narrow(dim, *blocks(size, group.size)[group.position]).contiguous()
    if summable(monoid, x.dtype):
        return end_scatter(start_scatter(x, dim, group), dim, tuple(x.shape), group)
    pieces = [x.narrow(dim, *extent) for extent in blocks(size, group.size)]
    shapes = [tuple(pieces[group.position].shape)] * group.size
    return reduce_tensors(monoid, exchanged(in_rank_order(pieces, group), shapes, group))


def all_to_all(
    x: Tensor, split_dim: int, concat_dim: int, concat_size: int, group: Group
) -> Tensor:
    """Splits `split_dim` into blocks, one per member, and joins the blocks received.

    Args:
        x: `split_dim` is complete, `concat_dim` is the rank's block of `concat_size`.
        split_dim: The dimension of which the result holds the rank's block.
        concat_dim: The dimension that is complete in the result.
        concat_size: Its global size.
        group: The members.
    """
    split_dim, concat_dim = split_dim % x.ndim, concat_dim % x.ndim
    if group.size == 1:
        return x
    sent = blocks(x.shape[split_dim], group.size)
    received = blocks(concat_size, group.size)
    shape = list(x.shape)
    shape[split_dim], shape[concat_dim] = sent[group.position][1], concat_size
    if _all_empty(x, concat_dim, concat_size):
        return x.new_empty(shape)
    moved = x.movedim((split_dim, concat_dim), (0, 1))
    pieces = [moved.narrow(0, *extent) for extent in in_rank_order(sent, group)]
    shapes = [(sent[group.position][1], length, *moved.shape[2:]) for _, length in received]
    joined = torch.cat(exchanged(pieces, shapes, group), 1)
    return joined.movedim((0, 1), (split_dim, concat_dim)).contiguous()


def _all_empty(x: Tensor, concat_dim: int, concat_size: int) -> bool:
    """Whether every member sends nothing: its own block of `concat_dim` alone may be empty."""
    return concat_size == 0 or any(
        size == 0 for dim, size in enumerate(x.shape) if dim != concat_dim
    )


def broadcast(x: Tensor, source: int, group: Group) -> Tensor:
    """Returns the tensor of the member at position `source`."""
    if group.size == 1 or x.numel() == 0:
        return x
    return end_broadcast(start_broadcast(x, source, group), x.dtype)


def permute(x: Tensor, sizes: Sequence[int], order: Sequence[int], group: Group) -> Tensor:
    """Returns the tensor of another member, all of one shape; each is sent to one member.

    Args:
        x: The rank's tensor.
        sizes: Of the mesh axes that the group spans.
        order: These axes in the order in which they number what members get.
        group: The members.
    """
    sources: list[int] = [permuted(member, sizes, order) for member in range(group.size)]
    if group.size == 1 or x.numel() == 0:
        return x
    me = group.position
    empty = x.flatten()[:0]
    sent = [x if source == me else empty for source in sources]
    shapes = [tuple(x.shape if at == sources[me] else empty.shape) for at in range(group.size)]
    received = exchanged(in_rank_order(sent, group), shapes, group)
    return received[sources[me]].contiguous()


def redistribute(
    x: Tensor,
    dim: int,
    size: int,
    block: int,
    outputs: int,
    outputs_block: int,
    stride: int,
    start: int,
    length: int,
    fill: Fill,
    sizes: Sequence[int] = (),
    held: Sequence[int] = (),
    read: Sequence[int] = (),
    *,
    group: Group,
) -> Tensor:
    """Returns the rank's window of `dim`, of which members hold blocks.

    What a rank holds already isn't sent. The arguments are those of `Redistribution`, `Window` and
    `Numbering`.
    """
    window = Window("", stride, start, length, fill)
    numbering = Numbering(tuple(sizes), tuple(held), tuple(read))
    exchange = Redistribution(size, block, outputs, outputs_block, window, numbering)
    me = group.position
    rows = x.movedim(dim, 0)
    first = numbering.held_by(me) * exchange.block
    wanted = _wanted(exchange, group.size)
    arrived: dict[int, Tensor] = {}
    if any(at != reader for reader, asked in enumerate(wanted) for at, _ in asked):
        sent = [_held(rows, asked, me, reader, first) for reader, asked in enumerate(wanted)]
        counts = [sum(_rows(wanted[me], at)) if at != me else 0 for at in range(group.size)]
        shapes = [(count, *rows.shape[1:]) for count in counts]
        arrived = dict(enumerate(exchanged(in_rank_order(sent, group), shapes, group)))
    taken = dict.fromkeys(arrived, 0)
    parts = []
    for holder, piece in wanted[me]:
        if holder == me:
            parts.append(read_piece(rows, piece, first, fill))
            continue
        low, count = piece.extent
        parts.append(read_piece(arrived[holder][taken[holder] :], piece, low, fill))
        taken[holder] += count
    return joined(rows, parts).movedim(0, dim).contiguous()


@lru_cache(maxsize=256)
def _wanted(exchange: Redistribution, members: int) -> tuple[tuple[tuple[int, Piece], ...], ...]:
    """Returns what each member reads, with the members that hold it; the same in every call."""
    return tuple(tuple(exchange.pieces(member)) for member in range(members))


def _held(
    rows: Tensor, asked: Sequence[tuple[int, Piece]], me: int, reader: int, first: int
) -> Tensor:
    """Returns what a rank that holds `rows` from `first` on sends to a reader of these pieces."""
    extents = [piece.extent for at, piece in asked if at == me != reader]
    return joined(rows, [rows.narrow(0, low - first, count) for low, count in extents])


def _rows(asked: Sequence[tuple[int, Piece]], holder: int) -> list[int]:
    """Returns the number of rows of each piece that a member holds."""
    return [piece.extent[1] for at, piece in asked if at == holder]


def transfer(
    x: Tensor,
    dim: int,
    size: int,
    senders: int,
    block: int,
    arriving_block: int,
    copies: int,
    group: Group,
) -> Tensor:
    """Returns the rank's block of `dim`, of which other members send what they hold.

    Who sends gets nothing. The arguments are those of `Transfer`.
    """
    args = (dim, size, senders, block, arriving_block, copies)
    pending = start_transfer(x, *args, group)
    return end_transfer(pending, x.shape, *args, x.dtype, group)


COLLECTIVES: Mapping[str, Callable[..., Tensor]] = {
    ALL_REDUCE: all_reduce,
    ALL_GATHER: all_gather,
    REDUCE_SCATTER: reduce_scatter,
    ALL_TO_ALL: all_to_all,
    BROADCAST: broadcast,
    REDISTRIBUTE: redistribute,
    PERMUTE: permute,
    TRANSFER: transfer,
}
"""The function of each collective; its last argument is the `Group`."""
