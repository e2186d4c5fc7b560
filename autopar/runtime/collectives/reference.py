"""Collectives by definition: from all members' tensors to all members' results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from autopar.base.errors import RuntimeFailure
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
from autopar.ir.program import Op
from autopar.ir.rules.numbering import permuted
from autopar.ir.rules.redistribution import Redistribution
from autopar.ir.rules.transfer import Transfer
from autopar.runtime.collectives.monoids import reduce_tensors
from autopar.runtime.collectives.windows import fill_value
from autopar.runtime.ports.boxes import blocks


def collective(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns the result of every member, given their tensors in the order of the blocks.

    Each is in memory of its own, over which its member may write.

    Raises:
        RuntimeFailure: If the kind is unknown or the tensors don't fit together.
    """
    function = _REFERENCE.get(op.kind)
    if function is None:
        raise RuntimeFailure(f"{op.loc}: unknown collective {op.kind}")
    results = function(op, tensors)
    first = {id(result): at for at, result in reversed([*enumerate(results)])}
    return [
        result if first[id(result)] == at else result.clone() for at, result in enumerate(results)
    ]


def _integer(op: Op, name: str) -> int:
    value = op.arg(name)
    if not isinstance(value, int):
        raise RuntimeFailure(f"{op.loc}: {op.kind} -> %{op.results[0]} has {name}={value}")
    return value


def _all_reduce(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return [reduce_tensors(str(op.arg("monoid")), tensors)] * len(tensors)


def _all_gather(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    dim, size = _integer(op, "dim"), _integer(op, "size")
    lengths = [length for _, length in blocks(size, len(tensors))]
    _expect(op, [tensor.shape[dim] for tensor in tensors], lengths)
    return [torch.cat(list(tensors), dim)] * len(tensors)


def _reduce_scatter(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    dim = _integer(op, "dim")
    total = reduce_tensors(str(op.arg("monoid")), tensors)
    pieces = blocks(total.shape[dim], len(tensors))
    return [total.narrow(dim, *piece).contiguous() for piece in pieces]


def _all_to_all(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    split_dim, concat_dim = _integer(op, "split_dim"), _integer(op, "concat_dim")
    lengths = [length for _, length in blocks(_integer(op, "concat_size"), len(tensors))]
    _expect(op, [tensor.shape[concat_dim] for tensor in tensors], lengths)
    return [
        torch.cat([tensor.narrow(split_dim, *piece) for tensor in tensors], concat_dim)
        for piece in blocks(tensors[0].shape[split_dim], len(tensors))
    ]


def _broadcast(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    # As it arrives: kernels round otherwise where strides differ.
    sent = tensors[_integer(op, "source")].clone(memory_format=torch.contiguous_format)
    return [sent] * len(tensors)


def _expect(op: Op, found: list[int], wanted: list[int]) -> None:
    if found != wanted:
        raise RuntimeFailure(
            f"{op.loc}: {op.kind} -> %{op.results[0]} gets blocks of {found}, not {wanted}"
        )


def _redistribute(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    exchange = Redistribution.of_args(dict(op.args))
    dim, block = _integer(op, "dim"), exchange.block
    held = [exchange.numbering.held_by(member) for member in range(len(tensors))]
    lengths = [max(0, min(block, exchange.size - at * block)) for at in held]
    _expect(op, [tensor.shape[dim] for tensor in tensors], lengths)
    blocks = dict(zip(held, tensors, strict=True))
    whole = torch.cat([blocks[at] for at in sorted(blocks)], dim)
    return [window_of(whole, dim, exchange, member) for member in range(len(tensors))]


def window_of(whole: Tensor, dim: int, exchange: Redistribution, member: int) -> Tensor:
    """Returns what a member of a redistribution gets, element by element."""
    low, high = exchange.interval(member)
    size, fill = exchange.size, exchange.window.fill
    at = torch.arange(low, high, device=whole.device)
    inside = (at >= 0) & (at < size)
    if fill == "none":
        return _entries(whole, dim, at[inside])
    if fill == "wrap":
        return _entries(whole, dim, at % size)
    if fill == "edge":
        return _entries(whole, dim, at.clamp(0, size - 1))
    if fill == "reflect":
        return _entries(whole, dim, torch.where(at < size, at.abs(), 2 * (size - 1) - at))
    spare = whole.new_full((1,), fill_value(fill, whole.dtype))
    shape = [1 if d == dim else n for d, n in enumerate(whole.shape)]
    padded = torch.cat([whole, spare.expand(shape)], dim)
    return _entries(padded, dim, torch.where(inside, at, size))


def _entries(whole: Tensor, dim: int, at: Tensor) -> Tensor:
    """Returns entries of a dimension; torch's index_select lacks vectors of unsigned integers."""
    return whole.movedim(dim, 0)[at].movedim(0, dim)


def _permute(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    sizes, order = (_integers(op, name) for name in ("sizes", "order"))
    return [tensors[permuted(member, sizes, order)] for member in range(len(tensors))]


def _transfer(op: Op, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    moved, dim = Transfer.of_args(dict(op.args)), _integer(op, "dim")
    count = range(len(tensors))
    lengths = [moved.extent(at)[1] if at < moved.senders else 0 for at in count]
    _expect(op, [tensor.shape[dim] for tensor in tensors], lengths)
    whole = torch.cat(list(tensors[: moved.senders]), dim)
    extents = [moved.extent(at) if at >= moved.senders else (0, 0) for at in count]
    return [whole.narrow(dim, *extent).contiguous() for extent in extents]


def _integers(op: Op, name: str) -> list[int]:
    items = op.arg(name)
    return [item for item in items if isinstance(item, int)] if isinstance(items, tuple) else []


_REFERENCE: Mapping[str, Callable[[Op, Sequence[Tensor]], Sequence[Tensor]]] = {
    ALL_REDUCE: _all_reduce,
    ALL_GATHER: _all_gather,
    REDUCE_SCATTER: _reduce_scatter,
    ALL_TO_ALL: _all_to_all,
    BROADCAST: _broadcast,
    REDISTRIBUTE: _redistribute,
    PERMUTE: _permute,
    TRANSFER: _transfer,
}
