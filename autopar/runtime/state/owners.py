"""Which rank writes a piece that several hold: it follows from the deployment alone.

So no rank has to ask another one what to write. Of the ranks that hold the same piece it is the one
that has least to write so far, the largest pieces first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from autopar.ir.deployment import Deployment
from autopar.ir.expr.arrays import Ints, evaluate_on_ranks
from autopar.ir.expr.expression import evaluate
from autopar.ir.program import BoxDim, Port
from autopar.runtime.kernels.table import TORCH_DTYPES
from autopar.runtime.ports.boxes import Box, Extent, box_shape, is_empty, whole_box


def pieces_written(
    deployment: Deployment, inputs: Sequence[int], ranks: Collection[int]
) -> set[tuple[int, int]]:
    """Returns which pieces ranks write, as (rank, input): each piece of a tensor is written once.

    Args:
        deployment: All ranks.
        inputs: The inputs that are to be written, by their place in a program's signature.
        ranks: The ranks to answer for.
    """
    classes = [(at, *_holders(deployment, at)) for at in inputs]
    written = np.zeros(deployment.world_size, np.int64)
    found: set[tuple[int, int]] = set()
    for at, held, sizes in sorted(classes, key=lambda each: (-max(each[2], default=0), each[0])):
        for rank in _chosen(held, written):
            written[rank] += sizes[held[rank]]
            if rank in ranks:
                found.add((int(rank), at))
    return found


def _chosen(held: Ints, written: Ints) -> Iterator[int]:
    """Yields a rank for each class: the one of those in it that has least to write."""
    order = np.lexsort((written, held))
    order = order[held[order] >= 0]
    _, first = np.unique(held[order], return_index=True)
    yield from order[first]


def _holders(deployment: Deployment, at: int) -> tuple[Ints, list[int]]:
    """Returns which piece each rank holds of an input, -1 for none, and the bytes of each piece."""
    known: dict[Box, int] = {}
    held = np.full(deployment.world_size, -1, np.int64)
    entries = np.array([rank.program for rank in deployment.ranks])
    coords = np.array([rank.coords for rank in deployment.ranks]).reshape(len(entries), -1)
    for which, program in enumerate(deployment.programs):
        members = np.flatnonzero(entries == which)
        columns = dict(zip(deployment.axes, coords[members].T, strict=True))
        for box, among in _boxes(program.signature.inputs[at], columns, len(members)):
            if not is_empty(box):
                held[members[among]] = known.setdefault(box, len(known))
    itemsize = TORCH_DTYPES[deployment.programs[0].signature.inputs[at].dtype].itemsize
    return held, [int(np.prod(box_shape(box), dtype=np.int64)) * itemsize for box in known]


def _boxes(port: Port, coords: dict[str, Ints], count: int) -> Iterator[tuple[Box, Ints]]:
    """Yields each piece that some of `count` ranks hold, and which of them."""
    everyone = np.arange(count)
    if not port.box:
        yield whole_box(port.known_shape), everyone
        return
    subs = [sub for dim in port.box for sub in dim]
    ends = [evaluate_on_ranks(end, coords) for sub in subs for end in (sub.start, sub.length)]
    if all(len(end) == 1 for end in ends) or not ends:
        yield _box(port.box, [int(end[0]) for end in ends], len(port.shape)), everyone
        return
    table = np.stack([np.broadcast_to(end, (count,)) for end in ends], axis=1)
    rows, which = np.unique(table, axis=0, return_inverse=True)
    for number, row in enumerate(rows):
        box = _box(port.box, row.tolist(), len(port.shape))
        yield box, np.flatnonzero(which.reshape(-1) == number)


def _box(box: Sequence[Sequence[BoxDim]], ends: Sequence[int], dims: int) -> Box:
    """Returns the piece with these starts and lengths, as `boxes.resolve_box` does."""
    pairs = iter(zip(ends[::2], ends[1::2], strict=True))
    found = tuple(tuple(Extent(evaluate(sub.size, {}), *next(pairs)) for sub in dim) for dim in box)
    return found if is_empty(found) else found[:dims]
