"""Collectives that run beside what is computed, until somebody waits for them.

Each is a pair of functions. The first starts it and returns what is pending, the second waits for
that and makes the result of it; together they are the collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autopar.ir.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    TRANSFER,
    declared,
)
from autopar.ir.dims import block_size
from autopar.ir.program import Op, Value
from autopar.ir.rules.transfer import Transfer
from autopar.runtime.collectives.groups import Group
from autopar.runtime.collectives.pieces import by_rank, in_rank_order, is_sorted, sent_to_all, wait
from autopar.runtime.collectives.reducing import is_short, reduced
from autopar.runtime.collectives.wire_dtypes import carried, restored
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.boxes import blocks


def start_sum(x: Tensor, group: Group, free: bool) -> Tensor:
    """Starts the sum of the members' tensors, which runs beside what is computed until `end_sum`.

    Args:
        x: The rank's tensor, which isn't empty.
        group: The members.
        free: Whether nobody else reads the tensor, so that the sum may be written over it.
    """
    ops = torch.ops._c10d_functional
    if is_short(x, group):
        return sent_to_all(x.unsqueeze(0), group)
    # torch.compile decides for itself what is written where.
    if free and not torch.compiler.is_compiling():
        return ops.all_reduce_(x.contiguous(), "sum", group.tag)  # type: ignore[no-any-return]
    return ops.all_reduce(x.contiguous(), "sum", group.tag)  # type: ignore[no-any-return]


def end_sum(pending: Tensor, ndim: int, group: Group) -> Tensor:
    """Returns the sum of tensors of `ndim` dimensions that `start_sum` started."""
    arrived = wait(pending)
    return reduced(arrived, "sum", group) if arrived.ndim > ndim else arrived


def start_gather(x: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """Starts an `all_gather`, whose result isn't empty, for `end_gather` to wait for."""
    block = block_size(size, group.size)
    return sent_to_all(_padded(carried(x.movedim(dim, 0)), block), group)


def end_gather(pending: Tensor, dim: int, size: int, dtype: torch.dtype, group: Group) -> Tensor:
    """Returns the result of an `all_gather` of elements of `dtype` when it is there."""
    rows = wait(pending)
    if not is_sorted(group):
        chunks = rows.reshape(group.size, -1, *rows.shape[1:]).unbind(0)
        rows = torch.cat([chunks[at] for at in group.order])
    return restored(rows[:size], dtype).movedim(0, dim).contiguous()


def start_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Starts a `reduce_scatter` of a sum of tensors that aren't empty, for `end_scatter`.

    Gloo's reduces everything, so blocks are sent to who reduces them.
    """
    ops = torch.ops._c10d_functional
    extents = blocks(x.shape[dim], group.size)
    if group.backend != "nccl":
        pieces = [x.narrow(dim, *extent).flatten() for extent in in_rank_order(extents, group)]
        sends = [piece.numel() for piece in pieces]
        # Blocks of rows follow one another already.
        whole = x.flatten() if dim == 0 and is_sorted(group) else torch.cat(pieces)
        mine = [sends[group.order[group.position]]] * group.size
        return ops.all_to_all_single(whole, mine, sends, group.tag)  # type: ignore[no-any-return]
    block = block_size(x.shape[dim], group.size)
    rows = _padded(x.movedim(dim, 0), block * group.size)
    rows = by_rank(rows.reshape(group.size, block, *rows.shape[1:]), group).flatten(0, 1)
    return ops.reduce_scatter_tensor(rows.contiguous(), "sum", group.size, group.tag)  # type: ignore[no-any-return]


def end_scatter(pending: Tensor, dim: int, shape: Sequence[int], group: Group) -> Tensor:
    """Returns the result of a `reduce_scatter` of tensors of a shape when it is there."""
    length = blocks(shape[dim], group.size)[group.position][1]
    arrived = wait(pending)
    if group.backend == "nccl":
        return arrived[:length].movedim(0, dim).contiguous()
    piece = [*shape]
    piece[dim] = length
    return reduced(arrived.reshape(group.size, *piece), "sum", group)


def start_broadcast(x: Tensor, source: int, group: Group) -> Tensor:
    """Starts a `broadcast` of a copy of a tensor that isn't empty, for `end_broadcast`."""
    ops = torch.ops._c10d_functional
    return ops.broadcast(carried(x).contiguous(), group.order[source], group.tag)  # type: ignore[no-any-return]


def end_broadcast(pending: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the result of a `broadcast` of elements of `dtype` when it is there."""
    return restored(wait(pending), dtype)


def start_transfer(
    x: Tensor,
    dim: int,
    size: int,
    senders: int,
    block: int,
    arriving_block: int,
    copies: int,
    group: Group,
) -> Tensor:
    """Starts a `transfer`, of which a member sends or gets something, for `end_transfer`.

    The arguments are those of `Transfer`.
    """
    transfer = Transfer(size, senders, block, arriving_block, copies)
    me, rows = group.position, x.movedim(dim, 0)
    first, row = transfer.extent(me)[0], prod(rows.shape[1:])
    sends, receives = [0] * group.size, [0] * group.size
    pieces: list[list[Tensor]] = [[] for _ in range(group.size)]
    for each in transfer.stretches(me, group.size):
        if me == each.sender:
            sends[each.receiver] += each.length * row
            pieces[each.receiver].append(rows.narrow(0, each.start - first, each.length))
        else:
            receives[each.sender] += each.length * row
    sent = [piece.flatten() for to in in_rank_order(pieces, group) for piece in to]
    flat = torch.cat([carried(piece) for piece in sent or [x.flatten()[:0]]])
    ops = torch.ops._c10d_functional
    return ops.all_to_all_single(  # type: ignore[no-any-return]
        flat, in_rank_order(receives, group), in_rank_order(sends, group), group.tag
    )


def end_transfer(
    pending: Tensor,
    shape: Sequence[int],
    dim: int,
    size: int,
    senders: int,
    block: int,
    arriving_block: int,
    copies: int,
    dtype: torch.dtype,
    group: Group,
) -> Tensor:
    """Returns what arrived of a `transfer` of tensors of a shape when it is there.

    Args:
        pending: What `start_transfer` returned.
        shape: Of the rank's own tensor, of which dimension `dim` doesn't count.
        dim, size, senders, block, arriving_block, copies: See `Transfer`.
        dtype: Of the elements.
        group: The members.
    """
    arrived = wait(pending)
    rest = [length for at, length in enumerate(shape) if at != dim]
    if group.position < senders:
        return restored(arrived[:0], dtype).reshape(0, *rest).movedim(0, dim)
    transfer = Transfer(size, senders, block, arriving_block, copies)
    whole, order = arrived, group.order[:senders]
    if order != tuple(sorted(order)):
        lengths = [0] * group.size
        for each in transfer.stretches(group.position, group.size):
            lengths[each.sender] = each.length * prod(rest)
        parts = torch.split(arrived, in_rank_order(lengths, group))
        whole = torch.cat([parts[group.order[at]] for at in range(senders)])
    count = transfer.extent(group.position)[1]
    return restored(whole, dtype).reshape(count, *rest).movedim(0, dim).contiguous()


def _padded(x: Tensor, rows: int) -> Tensor:
    missing = rows - x.shape[0]
    if not missing:
        return x
    return torch.cat([x, x.new_zeros((missing, *x.shape[1:]))])


Arguments = tuple[Any, ...]


class Halves(NamedTuple):
    """The two functions of a collective that is started.

    Attributes:
        start: Starts it, given the rank's tensor; returns what is pending.
        end: Waits for what is pending, and makes the result of it.
        arguments: Returns what they are given besides: `arguments(op, operand, group, free)`. If a
            result may be written over the operand, the last argument of `start` is `free`, whether
            nobody else reads that.
    """

    start: Callable[..., Tensor]
    end: Callable[..., Tensor]
    arguments: Callable[[Op, Value, Group, bool], tuple[Arguments, Arguments]]


def _of_sum(op: Op, x: Value, group: Group, free: bool) -> tuple[Arguments, Arguments]:
    return (group, free), (len(x.shape), group)


def _of_gather(op: Op, x: Value, group: Group, free: bool) -> tuple[Arguments, Arguments]:
    dim, size = op.arg("dim"), op.arg("size")
    return (dim, size, group), (dim, size, TORCH_DTYPES[x.dtype], group)


def _of_scatter(op: Op, x: Value, group: Group, free: bool) -> tuple[Arguments, Arguments]:
    return (op.arg("dim"), group), (op.arg("dim"), x.shape, group)


def _of_broadcast(op: Op, x: Value, group: Group, free: bool) -> tuple[Arguments, Arguments]:
    return (op.arg("source"), group), (TORCH_DTYPES[x.dtype],)


def _of_transfer(op: Op, x: Value, group: Group, free: bool) -> tuple[Arguments, Arguments]:
    names = ("dim", "size", "senders", "block", "arriving_block", "copies")
    args = tuple(op.arg(name) for name in names)
    return (*args, group), (x.shape, *args, TORCH_DTYPES[x.dtype], group)


HALVES: Mapping[str, Halves] = {
    ALL_REDUCE: Halves(start_sum, end_sum, _of_sum),
    ALL_GATHER: Halves(start_gather, end_gather, _of_gather),
    REDUCE_SCATTER: Halves(start_scatter, end_scatter, _of_scatter),
    BROADCAST: Halves(start_broadcast, end_broadcast, _of_broadcast),
    TRANSFER: Halves(start_transfer, end_transfer, _of_transfer),
}
"""The halves of each collective that is declared to be started."""

STARTS = frozenset(halves.start for halves in HALVES.values())
"""What starts a collective that is awaited later."""

REPLACING = frozenset(
    halves.start
    for kind, halves in HALVES.items()
    if (start := declared(kind).start) is not None and start.replaces_operand
)
"""Those of them that may write the result over the operand."""

ENDS = frozenset(halves.end for halves in HALVES.values())
"""What waits for a collective that was started."""
