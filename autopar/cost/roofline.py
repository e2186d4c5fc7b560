"""Seconds of an op on one device: the roofline of its arithmetic and of its memory traffic.

Williams, Waterman and Patterson, *Roofline: an insightful visual performance model* (2009): an op
takes as long as the slower of computing and moving its data. Sizes are those of the rank with the
largest part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.cost.cluster import Cluster
from autopar.ir.dims import block_size
from autopar.ir.dtypes import DTYPE_BYTES, INDEXES
from autopar.ir.expr.expression import planned, prod
from autopar.ir.ops.families import is_in_place
from autopar.ir.program import OpDist
from autopar.ir.rules.distribution import local_points
from autopar.ir.rules.rule import Dims, Rule, TensorType


def local_operations(rule: Rule | None, dist: OpDist, types: Sequence[TensorType]) -> float:
    """Returns the arithmetic operations of an op on one device, also those that flops leave out.

    Args:
        rule: The op's rule; None counts one operation per element of the largest tensor.
        dist: The choice.
        types: Global types of the operands and then the results.
    """
    if rule is None:
        return max((planned(prod(t.shape)) for t in types), default=0)
    work = rule.under(dist.body).work
    # An op that only moves, like one that joins a hundred tensors, may have more points than a
    # float can say.
    return work and work * local_points(rule, dist)


def local_bytes(rule: Rule | None, dist: OpDist, types: Sequence[TensorType]) -> int:
    """Returns the bytes that an op reads and writes on one device.

    An operand that is addressed by an indexed factor (an embedding's table) is read only as often
    as there are indexes. Where no operand holds these, it counts no more than the largest result.

    Args:
        rule: The op's rule; None counts every tensor as whole.
        dist: The choice.
        types: Global types of the operands and then the results.
    """
    if rule is None:
        return sum(planned(prod(t.shape)) * DTYPE_BYTES[t.dtype] for t in types)
    rule = rule.under(dist.body)
    sizes = _local_sizes(rule, dist)
    nbytes = _tensor_bytes(rule, sizes, types)
    largest = max(nbytes[len(rule.operands) :], default=0)
    looked_up = _indexes(rule, types, sizes)
    for position, dims in enumerate(rule.operands):
        own = {factor for dim in dims for factor in dim}
        if position in rule.passed_over:
            nbytes[position] = 0
        elif not own.isdisjoint(rule.indexed):
            read = math.prod(sizes[each] for each in (own | looked_up) - rule.indexed.keys())
            most = read * DTYPE_BYTES[types[position].dtype] if looked_up else largest
            nbytes[position] = min(nbytes[position], most)
    return sum(nbytes)


def _local_sizes(rule: Rule, dist: OpDist) -> Mapping[str, int]:
    """Returns the size of each factor on one device."""
    split = {
        factor: planned(prod(block_size(sub.size, dist.mesh.axes_size(sub.axes)) for sub in dim))
        for factor, dim in dist.factors
    }
    spans = {
        factor: window.span(split[window.of])
        for factor, window in rule.windows.items()
        if window.of in split
    }
    whole = {factor: planned(size) for factor, size in rule.sizes.items()}
    return {**whole, **split, **spans}


def _tensor_bytes(rule: Rule, sizes: Mapping[str, int], types: Sequence[TensorType]) -> list[int]:
    """Returns the bytes of each operand and then of each result, by the sizes of factors."""
    tensors: tuple[Dims, ...] = (*rule.operands, *rule.results)
    return [
        math.prod(sizes[factor] for dim in dims for factor in dim) * DTYPE_BYTES[t.dtype]
        for dims, t in zip(tensors, types, strict=True)
    ]


def _indexes(rule: Rule, types: Sequence[TensorType], sizes: Mapping[str, int]) -> set[str]:
    """Returns the factors of the most indexes that address an indexed factor."""
    operands = zip(rule.operands, types, strict=False)
    given = [
        {factor for dim in dims for factor in dim}
        for dims, kind in operands
        if kind.dtype in INDEXES
    ]
    addressing = [own for own in given if own.isdisjoint(rule.indexed)]
    return max(addressing, key=lambda own: math.prod(sizes[each] for each in own), default=set())


def op_seconds(
    kind: str, rule: Rule | None, dist: OpDist, types: Sequence[TensorType], cluster: Cluster
) -> float:
    """Returns the seconds of an op on one device, as measured, or else by the roofline.

    launch + max(flops / peak, bytes / bandwidth), with the parts of peak and bandwidth that are
    reached. Where the cluster knows the op's family, what was measured of that takes its place.

    Args:
        kind: The op's kind.
        rule: Its rule, None if it has none.
        dist: The choice.
        types: Global types of the operands and then the results.
        cluster: Gives these figures. The peak is that of the first tensor's dtype.
    """
    operations, moved = local_operations(rule, dist, types), local_bytes(rule, dist, types)
    measured = cluster.measured(kind, types)
    if measured is None:
        return _roofline(operations, moved, types, cluster)
    if measured.counts_operations:
        seconds = measured.rated.seconds(operations, operations / max(moved, 1))
    else:
        seconds = measured.rated.seconds(moved)
        if measured.may_compute:
            seconds = max(seconds, _roofline(operations, 0, types, cluster))
    return max(seconds, cluster.launch_seconds) + _fresh_seconds(kind, rule, dist, types, cluster)


def least_op_seconds(
    kind: str, rule: Rule | None, dist: OpDist, types: Sequence[TensorType], cluster: Cluster
) -> float:
    """Returns the seconds that all parts of an op take at least together, however it is divided.

    Parts may be faster than all of it at once, where a cache holds them.

    Args:
        kind, rule, dist, types, cluster: See `op_seconds`.
    """
    operations, moved = local_operations(rule, dist, types), local_bytes(rule, dist, types)
    measured = cluster.measured(kind, types)
    if measured is None:
        return _roofline(operations, moved, types, cluster)
    work = operations if measured.counts_operations else moved
    return max(work / measured.rated.peak, cluster.launch_seconds)


def _roofline(
    operations: float, moved: int, types: Sequence[TensorType], cluster: Cluster
) -> float:
    peak = cluster.flops(types[0].dtype if types else "f32")
    return cluster.launch_seconds + max(operations / peak, moved / cluster.bytes_per_second)


def _fresh_seconds(
    kind: str, rule: Rule | None, dist: OpDist, types: Sequence[TensorType], cluster: Cluster
) -> float:
    """Returns what the memory of an op's results takes."""
    fresh = cluster.fresh_memory
    if fresh is None or rule is None or is_in_place(kind):
        return 0.0
    rule = rule.under(dist.body)
    nbytes = _tensor_bytes(rule, _local_sizes(rule, dist), types)
    return sum(map(fresh.seconds, nbytes[len(rule.operands) :]))
