"""How dense kernels want their operands, as the rows of the tables say.

What is said there is what torch's kernels on the CPU do. Ops that aren't here take operands as they
lie.
"""

from __future__ import annotations

from autopar.ir.ops import RULES
from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS
from autopar.ir.ops.table import Strict

_STRICT = {kind: row for kind, row in RULES.items() if isinstance(row, Strict)}

DENSE = frozenset((*(kind for kind, row in _STRICT.items() if not row.rows), *FUSED_STEPS))
"""Ops whose kernels ignore strides on the CPU, so that they get contiguous copies of operands."""

DENSE_ROWS = frozenset(kind for kind, row in _STRICT.items() if row.rows)
"""Ops whose kernels ignore the stride of the last dimension."""

ALONE = frozenset(
    (
        "aten.as_strided.default",
        "aten.as_strided_copy.default",
        "aten.as_strided_scatter.default",
    )
)
"""Ops that read memory and not elements, of which an operand must have one of its own."""

STRICT = (DENSE | DENSE_ROWS | ALONE) - frozenset(FUSED_STEPS)
"""Ops that may get copies of operands, so that none of them can be written to."""
