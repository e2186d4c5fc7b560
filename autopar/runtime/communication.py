"""Collectives on torch's functional collectives, right on every backend and for every dtype.

The backends have gaps, which end here. Gloo's MAX and MIN lose NaN depending on the order of the
ranks; gloo moves neither 16-bit integers nor 8-bit floats; both want blocks of one size.

* What is only moved travels as a dtype of the same size that every backend moves.
* MAX and MIN of floats run on integers of the same order, in which NaN is the extreme.
* Short integers and 8-bit floats are summed in a wider dtype and rounded once; 64-bit unsigned
  integers as signed ones.
* Gloo reduces in twice as many steps as it gathers, and scatters by reducing all of it. So small
  tensors are gathered and reduced by every member, and each block is sent to who reduces it.
* Uneven blocks are padded to the largest one and cut afterwards.

All functions return new contiguous tensors, can be captured by `torch.compile(fullgraph=True)`,
and skip communication only where every member of the group sees that there is nothing to send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from autopar.ir.errors import RuntimeFailure
from autopar.ir.kernel_memory import SHORT_SUM_BYTES
from autopar.ir.layout import block_size
from autopar.ir.numbering import Numbering, permuted
from autopar.ir.window import Fill, Piece, Redistribution, Window
from autopar.runtime.boxes import blocks
from autopar.runtime.groups import Group
from autopar.runtime.reduction import accumulator, from_signed, reduce_tensors, signed
from autopar.runtime.windows import joined, read_piece

_T = TypeVar("_T")


def all_reduce(x: Tensor, monoid: str, group: Group) -> Tensor:
    """Returns the reduction of the members' tensors, which have one shape."""
    if group.size == 1 or x.numel() == 0:
        return x
    if x.dtype == torch.uint64 and monoid in _NATIVE_NAMES:
        return from_signed(_native(signed(x, monoid), monoid, group), monoid)
    reducer = _reducer(monoid, x.dtype)
    return reducer(x.contiguous(), monoid, group).to(x.dtype)


def can_start(kind: str, monoid: object, dtype: torch.dtype, group: Group) -> bool:
    """Returns whether a collective may run beside what is computed until its result is read.

    `start_sum`, `start_gather`, `start_scatter` and `start_broadcast` start it; `end_sum`,
    `end_gather`, `end_scatter` and `end_broadcast` wait for it.
    """
    if group.size == 1 or kind in ("comm.all_gather", "comm.broadcast"):
        return group.size > 1
    return kind in ("comm.all_reduce", "comm.reduce_scatter") and _summable(monoid, dtype)


def start_sum(x: Tensor, group: Group, free: bool) -> Tensor:
    """Starts the sum of the members' tensors, which runs beside what is computed until `end_sum`.

    Args:
        x: The rank's tensor, which isn't empty.
        group: The members.
        free: Whether nobody else reads the tensor, so that the sum may be written over it.
    """
    ops = torch.ops._c10d_functional
    if _is_short(x, group):
        return _sent_to_all(x.unsqueeze(0), group)
    # torch.compile decides for itself what is written where.
    if free and not torch.compiler.is_compiling():
        return ops.all_reduce_(x.contiguous(), "sum", group.tag)  # type: ignore[no-any-return]
    return ops.all_reduce(x.contiguous(), "sum", group.tag)  # type: ignore[no-any-return]


def end_sum(pending: Tensor, ndim: int, group: Group) -> Tensor:
    """Returns the sum of tensors of `ndim` dimensions that `start_sum` started."""
    arrived = wait(pending)
    return _reduced(arrived, "sum", group) if arrived.ndim > ndim else arrived


def all_gather(x: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """Returns the members' blocks of `dim`, whose global size is `size`, one after another."""
    dim %= x.ndim
    shape = list(x.shape)
    shape[dim] = size
    if group.size == 1 or _product(shape) == 0:
        return x.new_empty(shape) if group.size > 1 else x
    return end_gather(start_gather(x, dim, size, group), dim, size, x.dtype, group)


def start_gather(x: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """Starts an `all_gather`, whose result isn't empty, for `end_gather` to wait for."""
    block = block_size(size, group.size)
    return _sent_to_all(_padded(carried(x.movedim(dim, 0)), block), group)


def end_gather(pending: Tensor, dim: int, size: int, dtype: torch.dtype, group: Group) -> Tensor:
    """Returns the result of an `all_gather` of elements of `dtype` when it is there."""
    rows = wait(pending)
    if not _is_sorted(group):
        chunks = rows.reshape(group.size, -1, *rows.shape[1:]).unbind(0)
        rows = torch.cat([chunks[at] for at in group.order])
    return restored(rows[:size], dtype).movedim(0, dim).contiguous()


def reduce_scatter(x: Tensor, dim: int, monoid: str, group: Group) -> Tensor:
    """Returns the rank's block of `dim` of the reduction of the members' tensors."""
    dim %= x.ndim
    size = x.shape[dim]
    if group.size == 1 or x.numel() == 0:
        return x.narrow(dim, *blocks(size, group.size)[group.position]).contiguous()
    if _summable(monoid, x.dtype):
        return end_scatter(start_scatter(x, dim, group), dim, tuple(x.shape), group)
    pieces = [x.narrow(dim, *extent) for extent in blocks(size, group.size)]
    shapes = [tuple(pieces[group.position].shape)] * group.size
    return reduce_tensors(monoid, _exchanged(_in_rank_order(pieces, group), shapes, group))


def start_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Starts a `reduce_scatter` of a sum of tensors that aren't empty, for `end_scatter`.

    Gloo's reduces everything, so blocks are sent to who reduces them.
    """
    ops = torch.ops._c10d_functional
    extents = blocks(x.shape[dim], group.size)
    if group.backend != "nccl":
        pieces = [x.narrow(dim, *extent).flatten() for extent in _in_rank_order(extents, group)]
        sends = [piece.numel() for piece in pieces]
        # Blocks of rows follow one another already.
        whole = x.flatten() if dim == 0 and _is_sorted(group) else torch.cat(pieces)
        mine = [sends[group.order[group.position]]] * group.size
        return ops.all_to_all_single(whole, mine, sends, group.tag)  # type: ignore[no-any-return]
    block = block_size(x.shape[dim], group.size)
    rows = _padded(x.movedim(dim, 0), block * group.size)
    rows = _by_rank(rows.reshape(group.size, block, *rows.shape[1:]), group).flatten(0, 1)
    return ops.reduce_scatter_tensor(rows.contiguous(), "sum", group.size, group.tag)  # type: ignore[no-any-return]


def end_scatter(pending: Tensor, dim: int, shape: Sequence[int], group: Group) -> Tensor:
    """Returns the result of a `reduce_scatter` of tensors of a shape when it is there."""
    length = blocks(shape[dim], group.size)[group.position][1]
    arrived = wait(pending)
    if group.backend == "nccl":
        return arrived[:length].movedim(0, dim).contiguous()
    piece = [*shape]
    piece[dim] = length
    return _reduced(arrived.reshape(group.size, *piece), "sum", group)


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
    pieces = [moved.narrow(0, *extent) for extent in _in_rank_order(sent, group)]
    shapes = [(sent[group.position][1], length, *moved.shape[2:]) for _, length in received]
    joined = torch.cat(_exchanged(pieces, shapes, group), 1)
    return joined.movedim((0, 1), (split_dim, concat_dim)).contiguous()


def _exchanged(
    pieces: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], group: Group
) -> list[Tensor]:
    """Sends one piece to each member and returns what each sent, in the order of the blocks.

    Args:
        pieces: In the order of the backend.
        shapes: Of what arrives, in the order of the blocks.
        group: The members.
    """
    dtype = pieces[0].dtype
    flat = torch.cat([carried(piece.flatten()) for piece in pieces])
    sends = [piece.numel() for piece in pieces]
    receives = _in_rank_order([_product(shape) for shape in shapes], group)
    ops = torch.ops._c10d_functional
    arrived = torch.split(wait(ops.all_to_all_single(flat, receives, sends, group.tag)), receives)
    return [
        restored(arrived[at], dtype).reshape(shape)
        for at, shape in zip(group.order, shapes, strict=True)
    ]


def broadcast(x: Tensor, source: int, group: Group) -> Tensor:
    """Returns the tensor of the member at position `source`."""
    if group.size == 1 or x.numel() == 0:
        return x
    return end_broadcast(start_broadcast(x, source, group), x.dtype)


def start_broadcast(x: Tensor, source: int, group: Group) -> Tensor:
    """Starts a `broadcast` of a copy of a tensor that isn't empty, for `end_broadcast`."""
    ops = torch.ops._c10d_functional
    return ops.broadcast(carried(x).contiguous(), group.order[source], group.tag)  # type: ignore[no-any-return]


def end_broadcast(pending: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the result of a `broadcast` of elements of `dtype` when it is there."""
    return restored(wait(pending), dtype)


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
    received = _exchanged(_in_rank_order(sent, group), shapes, group)
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
        arrived = dict(enumerate(_exchanged(_in_rank_order(sent, group), shapes, group)))
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


COLLECTIVES: Mapping[str, Callable[..., Tensor]] = {
    "comm.all_reduce": all_reduce,
    "comm.all_gather": all_gather,
    "comm.reduce_scatter": reduce_scatter,
    "comm.all_to_all": all_to_all,
    "comm.broadcast": broadcast,
    "comm.redistribute": redistribute,
    "comm.permute": permute,
}
"""The function of each collective; its last argument is the `Group`."""


# Reductions


def _reducer(monoid: str, dtype: torch.dtype) -> Callable[[Tensor, str, Group], Tensor]:
    if dtype == torch.bool or monoid in ("any", "all"):
        return _reduce_truth
    if dtype.is_complex and monoid in ("sum", "prod"):
        return _reduce_complex
    if monoid not in _NATIVE_NAMES or dtype.is_complex:
        raise RuntimeFailure(f"no reduction {monoid!r} for elements of {dtype}")
    ordered = monoid in ("max", "min") and dtype.is_floating_point
    return _reduce_ordered if ordered else _reduce_wide


def _summable(monoid: object, dtype: torch.dtype) -> bool:
    return monoid == "sum" and dtype in _PLAIN


def _reduce_wide(x: Tensor, monoid: str, group: Group) -> Tensor:
    wide = x.dtype if x.dtype in _PLAIN else accumulator(x.dtype)
    return _native(x.to(wide), monoid, group)


def _reduce_truth(x: Tensor, monoid: str, group: Group) -> Tensor:
    either = monoid in ("any", "max", "sum")
    return _native((x != 0).to(torch.uint8), "max" if either else "min", group)


def _reduce_ordered(x: Tensor, monoid: str, group: Group) -> Tensor:
    """MAX or MIN of floats, as integers: in IEEE 754, magnitudes order like their bit patterns."""
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    integer = torch.int64 if wide.dtype == torch.float64 else torch.int32
    magnitude = torch.iinfo(integer).max
    bits = wide.view(integer)
    keys = torch.where(bits < 0, bits ^ magnitude, bits)
    # Beyond every number on the side that wins, whatever sign and payload the NaN has.
    extreme = magnitude if monoid == "max" else torch.iinfo(integer).min
    keys = torch.where(torch.isnan(wide), extreme, keys)
    keys = _native(keys, monoid, group)
    return torch.where(keys < 0, keys ^ magnitude, keys).view(wide.dtype)


def _reduce_complex(x: Tensor, monoid: str, group: Group) -> Tensor:
    if monoid == "sum":
        parts = torch.view_as_real(x.to(accumulator(x.dtype)).contiguous())
        return torch.view_as_complex(_native(parts, "sum", group))
    gathered = all_gather(x.unsqueeze(0), 0, group.size, group)
    return reduce_tensors("prod", gathered.unbind(0))


_NATIVE_NAMES = {"sum": "sum", "max": "max", "min": "min", "prod": "product"}


def _is_short(x: Tensor, group: Group) -> bool:
    return group.backend == "gloo" and group.size * x.nbytes <= SHORT_SUM_BYTES


def _native(x: Tensor, monoid: str, group: Group) -> Tensor:
    if _is_short(x, group):
        return _reduced(wait(_sent_to_all(x.unsqueeze(0), group)), monoid, group)
    ops = torch.ops._c10d_functional
    return wait(ops.all_reduce(x.contiguous(), _NATIVE_NAMES[monoid], group.tag))


# Moves

_PLAIN = frozenset(
    (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    )
)
"""Dtypes that every backend takes as they are."""

_CARRIERS = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}


def carried(x: Tensor) -> Tensor:
    """Returns the same bytes as a dtype that every backend moves; complex ones get a dimension."""
    if x.dtype in _PLAIN:
        return x.contiguous()
    if x.is_complex():
        return torch.view_as_real(x.contiguous())
    return x.contiguous().view(_CARRIERS[x.dtype.itemsize])


def restored(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_complex:
        return torch.view_as_complex(x.contiguous())
    return x if x.dtype == dtype else x.contiguous().view(dtype)


def _sent_to_all(x: Tensor, group: Group) -> Tensor:
    """Starts to gather the members' tensors along dimension 0, in the backend's order."""
    ops = torch.ops._c10d_functional
    return ops.all_gather_into_tensor(  # type: ignore[no-any-return]
        x.contiguous(), group.size, group.tag
    )


def _reduced(gathered: Tensor, monoid: str, group: Group) -> Tensor:
    """Returns the reduction of gathered tensors, in the order of the blocks."""
    return reduce_tensors(monoid, [gathered[at] for at in group.order])


def _by_rank(blocks: Tensor, group: Group) -> Tensor:
    if _is_sorted(group):
        return blocks
    return torch.stack(_in_rank_order(blocks.unbind(0), group))


def _in_rank_order(items: Sequence[_T], group: Group) -> list[_T]:
    """Returns items given in the order of the blocks, in the backend's order."""
    positions = sorted(range(group.size), key=group.order.__getitem__)
    return [items[position] for position in positions]


def _is_sorted(group: Group) -> bool:
    return group.order == tuple(range(group.size))


def _padded(x: Tensor, rows: int) -> Tensor:
    missing = rows - x.shape[0]
    if not missing:
        return x
    return torch.cat([x, x.new_zeros((missing, *x.shape[1:]))])


def _all_empty(x: Tensor, concat_dim: int, concat_size: int) -> bool:
    """Whether every member sends nothing: its own block of `concat_dim` alone may be empty."""
    return concat_size == 0 or any(
        size == 0 for dim, size in enumerate(x.shape) if dim != concat_dim
    )


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def wait(pending: Tensor) -> Tensor:
    """Returns a collective's result when it is there."""
    return torch.ops._c10d_functional.wait_tensor(pending)  # type: ignore[no-any-return]


STARTS: frozenset[Callable[..., Tensor]] = frozenset(
    (start_sum, start_gather, start_scatter, start_broadcast)
)
"""What starts a collective that is awaited later."""

ENDS: frozenset[Callable[..., Tensor]] = frozenset(
    (end_sum, end_gather, end_scatter, end_broadcast)
)
"""What waits for a collective that was started."""
