"""Sorting and selecting by order: the dimension must not be split."""

from __future__ import annotations

import math

from autopar.ir.expr.expression import planned
from autopar.ir.ops.reduce.reduction import along, last_dim
from autopar.ir.ops.table import COMPARISON, Table, same
from autopar.ir.rules.rule import OpCall, Rule


def sort(call: OpCall) -> Rule | None:
    """aten.sort: as many comparisons per element as a merge sort has levels."""
    shape = call.operands[0].shape
    longest = max((planned(shape[at]) for at in last_dim(call)), default=1)
    return along(last_dim, work=COMPARISON * max(1.0, math.log2(max(1, longest))))(call)


RULES: Table = {
    **same(["aten.sort.default", "aten.sort.stable", "aten.argsort.default"], sort),
    # A heap or a partition compares each element once or twice.
    "aten.topk.default": along(last_dim, work=COMPARISON),
}
