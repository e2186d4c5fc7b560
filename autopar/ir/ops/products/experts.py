"""Products of experts: rows sorted by their expert, each group times its expert's matrix.

`offs` has the end of each group of rows. Of a block of rows a rank knows the number of the first.
Of its own experts it computes the rows and leaves zeros in the others'. The ops are those of
`transformers`.
"""

from __future__ import annotations

from autopar.ir.expr.expression import Expr, planned
from autopar.ir.ops.table import BILINEAR, Table, operand_dims, pending
from autopar.ir.rules.rule import Dims, OpCall, Rule, Shard, build_rule

INPUT: Dims = (("m",), ("k",))
WEIGHT: Dims = (("g",), ("k",), ("n",))
RESULT: Dims = (("m",), ("n",))
ENDS: Dims = (("o",),)


def products(call: OpCall) -> Rule | None:
    """transformers.grouped_mm_fallback: [m, k] x [g, k, n], of which each row has one expert."""
    return build_rule(
        call,
        operand_dims(call, {"input": INPUT, "weight": WEIGHT, "offs": ENDS}),
        [RESULT],
        reduce={"k": "sum", "g": "sum"},
        indexed={"g": _shard(call, "autopar.grouped_mm", "offset")},
        numbered={"m": _shard(call, "autopar.grouped_mm", "row")},
        whole=("o",),
        linear=BILINEAR,
        work=2 / _repeats(call),
    )


def gradients(call: OpCall) -> Rule | None:
    """transformers.grouped_mm_fallback_backward: the gradients of the rows and of the experts."""
    by_name = {"input": INPUT, "weight": WEIGHT, "offs": ENDS, "grad_output": RESULT}
    return build_rule(
        call,
        operand_dims(call, by_name),
        [INPUT, WEIGHT],
        reduce={("n", 0): "sum", ("g", 0): "sum", ("m", 1): "sum"},
        indexed={"g": _shard(call, "autopar.grouped_mm_backward", "offset")},
        numbered={"m": _shard(call, "autopar.grouped_mm_backward", "row")},
        whole=("o",),
        linear=(pending(3),),
        work=4 / _repeats(call),
    )


def _shard(call: OpCall, kind: str, start: str) -> Shard:
    """Returns the shard of an op, which may be one itself."""
    base = call.args.get(start, 0)
    return Shard(kind, start=start, base=base if isinstance(base, (int, Expr)) else 0)


def _repeats(call: OpCall) -> int:
    """Returns how often the factors name each row's product: per expert, and per end of a group."""
    ends = call.tensor("offs")
    return max(1, planned(ends.shape[0])) ** 2 if ends is not None else 1


RULES: Table = {
    "transformers.grouped_mm_fallback.default": products,
    "transformers.grouped_mm_fallback_backward.default": gradients,
}

SHARDS: Table = {"autopar.grouped_mm": products, "autopar.grouped_mm_backward": gradients}
"""What computes a rank's rows of its experts: of all groups, whose ends it is given."""
