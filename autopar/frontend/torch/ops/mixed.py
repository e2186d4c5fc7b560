"""Refuses products of tensors of different dtypes, which torch notices only when it computes them.

Tracing on fake tensors lets them pass, so that a batch of doubles would fail in the middle of a
program, on all ranks.
"""

from __future__ import annotations

from autopar.base.errors import InvalidInputError
from autopar.ir.program import Program

_PRODUCTS = frozenset(
    f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution")
)


def refuse_mixed_products(program: Program) -> None:
    """Refuses a program with a product of tensors of different dtypes.

    Raises:
        InvalidInputError: If there is one. Names the user's line.
    """
    values = program.main.values
    for op in program.main.ops:
        if op.kind in _PRODUCTS:
            dtypes = list(dict.fromkeys(values[name].dtype for name in op.operands))
            if len(dtypes) > 1:
                raise InvalidInputError(
                    f"{op.loc}: a product of {' and '.join(dtypes)}, which must be of one dtype;"
                    " convert what is given, or give it in the dtype of the parameters"
                )
