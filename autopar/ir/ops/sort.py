"""Sorting and selecting by order: the dimension must not be split."""

from __future__ import annotations

from autopar.ir.ops.reduction import along, last_dim
from autopar.ir.ops.table import Table, same

RULES: Table = same(
    ["aten.sort.default", "aten.sort.stable", "aten.topk.default", "aten.argsort.default"],
    along(last_dim, work=8),
)
