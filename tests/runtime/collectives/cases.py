"""A table of collectives: every kind, dtype and way to cut blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from autopar.ir.dims import block_size
from autopar.ir.memory.kernels import SHORT_SUM_BYTES
from autopar.ir.program import Arg, Op, Ref
from autopar.ir.rules.numbering import Numbering
from autopar.ir.rules.redistribution import Redistribution
from autopar.ir.rules.window import Window
from autopar.runtime.kernels.table import TORCH_DTYPES

EVERY_SIZE = ("f32", "bool", "c64")
"""Dtypes with which all sizes of blocks are tried; with the others, few uneven ones."""

LONG = (SHORT_SUM_BYTES // 2 + 1, 1)
"""A shape that two members don't gather to reduce it, however small its elements are, and of which
members gather blocks in the way of large ones."""


def cases(ranks: int) -> Iterator[tuple[Op, list[Tensor]]]:
    """Yields collectives of `ranks` members and each member's tensor, in block order."""
    yield from _reductions(ranks)
    yield from _special_reductions(ranks)
    for dtype in TORCH_DTYPES:
        sizes = _sizes(dtype, ranks)
        yield _op("broadcast", source=ranks - 1), _tensors(dtype, [(3, 2)] * ranks)
        yield from _permutations(dtype, ranks)
        if dtype in EVERY_SIZE:
            yield from _redistributions(dtype, ranks)
            yield from _transfers(dtype, ranks)
        if dtype in EVERY_SIZE:
            yield _gather(dtype, LONG[0], 0, ranks)
        for size in sizes:
            for dim in (0, 1):
                yield _gather(dtype, size, dim, ranks)
            for split_dim, concat_dim in ((0, 1), (2, 0)):
                for concat in sizes:
                    yield _all_to_all(dtype, size, concat, split_dim, concat_dim, ranks)


def _sizes(dtype: str, ranks: int) -> tuple[int, ...]:
    uneven = (2 * ranks - 1, 1)
    return (2 * ranks, *uneven, 0) if dtype in EVERY_SIZE else uneven


WINDOWS = (
    # outputs - size, stride, start, length
    (0, 1, -1, 3),
    (0, 1, -4, 9),
    (-2, 1, 1, 1),
    (3, 1, -2, 1),
    (0, 1, -3, 1),
    (0, -1, None, 1),
)


def _redistributions(dtype: str, ranks: int) -> Iterator[tuple[Op, list[Tensor]]]:
    """Halos, also where they are wider than a block, crops, pads, rolls and flips."""
    fills = (3, "wrap", "edge", "reflect", "none", *(("least",) if dtype != "c64" else ()))
    for size in (4 * ranks, 4 * ranks - 2, ranks + 1, 2):
        for (more, stride, start, length), fill in itertools.product(WINDOWS, fills):
            low = size - 1 if start is None else start
            window = Window("", stride, low, length, fill)
            exchange = Redistribution.over(size, max(0, size + more), ranks, window)
            last = low + length - 1 + max(0, exchange.outputs - 1) * stride
            if fill == "reflect" and not -size < low <= last < 2 * size - 1:
                continue
            for dim in (0, 1):
                shapes = [
                    tuple(b if d == dim else 2 for d in range(2)) for b in _blocks(size, ranks)
                ]
                op = _op("redistribute", dim=dim, **dict(exchange.args))
                yield op, _tensors(dtype, shapes)


def _transfers(dtype: str, ranks: int) -> Iterator[tuple[Op, list[Tensor]]]:
    """Blocks of some members for the others, who get one each, or the same."""
    for senders, size, dim in itertools.product(range(1, ranks), (7, 2, 0), (0, 1)):
        block, receivers = block_size(size, senders), ranks - senders
        lengths = [max(0, min(block, size - at * block)) for at in range(senders)]
        lengths += [0] * receivers
        shapes = [tuple(n if d == dim else 3 for d in range(2)) for n in lengths]
        for copies in (1, receivers):
            args: dict[str, Arg] = {"dim": dim, "size": size, "senders": senders, "block": block}
            arriving = block_size(size, receivers // copies)
            op = _op("transfer", **args, arriving_block=arriving, copies=copies)
            yield op, _tensors(dtype, shapes)


def _permutations(dtype: str, ranks: int) -> Iterator[tuple[Op, list[Tensor]]]:
    """Pieces that change places, and blocks of some axes that others cut anew."""
    for sizes, order in (((ranks, 1), (1, 0)), ((1, ranks), (0, 1))):
        for shape in ((3, 2), (), (0,)):
            yield _op("permute", sizes=sizes, order=order), _tensors(dtype, [shape] * ranks)
    for size in (2 * ranks - 1, ranks, 1):
        whole = _tensors(dtype, [(size, 2)])[0]
        block = block_size(size, ranks)
        split = [whole[at * block : (at + 1) * block] for at in range(ranks)]
        window = Window("", fill="none")
        for held, read, tensors in (((0,), (), split), ((), (0,), [whole] * ranks)):
            blocks = [block_size(size, ranks if axes else 1) for axes in (held, read)]
            numbering = Numbering((ranks,), held, read)
            exchange = Redistribution(size, blocks[0], size, blocks[1], window, numbering)
            yield _op("redistribute", dim=0, **dict(exchange.args)), tensors


def _reductions(ranks: int) -> Iterator[tuple[Op, list[Tensor]]]:
    for dtype in TORCH_DTYPES:
        ordered = () if TORCH_DTYPES[dtype].is_complex else ("max", "min")
        for monoid in ("sum", "prod", *ordered, "any", "all"):
            for shape in ((3, 4), (), *((LONG,) if dtype in EVERY_SIZE else ())):
                yield _op("all_reduce", monoid=monoid), _tensors(dtype, [shape] * ranks)
            for size in _sizes(dtype, ranks):
                for dim in (0, 1) if dtype in EVERY_SIZE else (1,):
                    shape = (size, 3) if dim == 0 else (3, size)
                    op = _op("reduce_scatter", dim=dim, monoid=monoid)
                    yield op, _tensors(dtype, [shape] * ranks)


def _special_reductions(ranks: int) -> Iterator[tuple[Op, list[Tensor]]]:
    """NaN and infinities, on each rank once, and what few backends can add up."""
    for dtype in ("f32", "f64", "f16", "bf16", "f8e5m2"):
        for monoid, shape in itertools.product(("max", "min"), ((6,), LONG[:1])):
            for at in range(ranks):
                tensors = _tensors(dtype, [shape] * ranks)
                tensors[at][0] = float("nan")
                tensors[at][1] = float("inf")
                tensors[at][2] = float("-inf")
                tensors[at][3] = -0.0
                tensors[at][4] = -float("nan")
                yield _op("all_reduce", monoid=monoid), tensors


def _gather(dtype: str, size: int, dim: int, ranks: int) -> tuple[Op, list[Tensor]]:
    shapes = [tuple(b if d == dim else 2 for d in range(2)) for b in _blocks(size, ranks)]
    return _op("all_gather", dim=dim, size=size), _tensors(dtype, shapes)


def _all_to_all(
    dtype: str, size: int, concat: int, split_dim: int, concat_dim: int, ranks: int
) -> tuple[Op, list[Tensor]]:
    shapes = []
    for block in _blocks(concat, ranks):
        shape = [2, 2, 2]
        shape[split_dim], shape[concat_dim] = size, block
        shapes.append(tuple(shape))
    op = _op("all_to_all", split_dim=split_dim, concat_dim=concat_dim, concat_size=concat)
    return op, _tensors(dtype, shapes)


def _blocks(size: int, ranks: int) -> list[int]:
    block = block_size(size, ranks)
    return [max(0, min(block, size - rank * block)) for rank in range(ranks)]


def _op(name: str, **args: Arg) -> Op:
    return Op(f"comm.{name}", (("self", Ref("x")), *args.items(), ("group", "g")), ("y",))


def _tensors(dtype: str, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Small integers, so that sums and products are exact in every dtype."""
    generator = torch.Generator().manual_seed(sum(map(ord, dtype)) + len(shapes))
    low = 0 if dtype in ("bool", "u8", "u16", "u32", "u64") else -2
    drawn = [torch.randint(low, 3, shape, generator=generator) for shape in shapes]
    return [tensor.to(TORCH_DTYPES[dtype]) for tensor in drawn]
