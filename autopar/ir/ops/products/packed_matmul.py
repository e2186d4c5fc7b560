"""Products of matrices in few bits, and of groups of matrices.

Their kernels want rows of so many bytes: rows and columns are split in blocks of 16 elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.expr.expression import IntExpr, planned
from autopar.ir.expr.facts import divides
from autopar.ir.ops.table import BILINEAR, Table, dense, operand_dims, row
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule

BLOCK = 16
"""Elements of a row that are not split."""


class _Blocks:
    """Names the dimensions of rows and columns by blocks."""

    def __init__(self) -> None:
        self.sizes: dict[str, IntExpr] = {}
        self.whole: list[str] = []

    def dim(self, name: str, size: IntExpr) -> tuple[str, ...]:
        """Returns the factors of a dimension of this size."""
        if size == 0 or not divides(BLOCK, size):
            self.whole.append(name)
            return (name,)
        inner = f"{name}_block"
        self.sizes[inner] = BLOCK
        self.whole.append(inner)
        return (name, inner)


def scaled(call: OpCall) -> Rule | None:
    """aten._scaled_mm: `scale_a * scale_b * (left @ right)`; scales are per row, or one for all."""
    (rows, inner), columns = call.operands[0].shape, call.operands[1].shape[1]
    blocks = _Blocks()
    k, n = blocks.dim("k", inner), blocks.dim("n", columns)
    scales: dict[str, Dims] = {}
    for name, dims in (("scale_a", (("m",), ())), ("scale_b", ((), n))):
        scale = call.tensor(name)
        sizes = (rows, 1) if name == "scale_a" else (1, columns)
        if scale is None or scale.shape not in ((), (1,), (1, 1), sizes):
            return None
        scales[name] = dims if scale.shape == sizes else ((),) * len(scale.shape)
    extra = any(call.tensor(name) is not None for name in ("bias", "scale_result"))
    by_name = {"self": (("m",), k), "mat2": (k, n), "bias": (n,), "scale_result": (), **scales}
    return build_rule(
        call,
        operand_dims(call, by_name),
        [(("m",), n)],
        sizes=blocks.sizes,
        reduce={"k": "sum"},
        whole=[*blocks.whole, *(["k"] if extra else [])],
        work=2,
    )


def grouped(call: OpCall) -> Rule | None:
    """aten._grouped_mm: a batch of products, or of those of rows that `offs` cuts into groups."""
    left, right = (operand.shape for operand in call.operands[:2])
    blocks = _Blocks()
    tensors = (left, right, call.results[0].shape)
    named = zip(_FORMS[len(left), len(right)], tensors, strict=True)
    first, second, result = (_named(text, shape, blocks) for text, shape in named)
    ends = call.tensor("offs")
    groups = planned(ends.shape[0]) if ends is not None else 1
    return build_rule(
        call,
        operand_dims(call, {"self": first, "mat2": second, "offs": (("g",),)}),
        [result],
        sizes=blocks.sizes,
        reduce={"k": "sum"},
        whole=[*blocks.whole, "g", "t"],
        linear=BILINEAR,
        work=2 / max(1, groups),
    )


_FORMS = {
    (3, 3): ("b m k", "b k n", "b m n"),
    (2, 3): ("t k", "g k n", "t n"),
    (3, 2): ("g m k", "k t", "m t"),
    (2, 2): ("m t", "t n", "g m n"),
}
"""The dimensions of left, right and result; `t` is cut into `g` groups."""


def _named(text: str, shape: Sequence[IntExpr], blocks: _Blocks) -> Dims:
    pairs = zip(text.split(), shape, strict=True)
    return tuple(blocks.dim(name, size) if name in ("k", "n") else (name,) for name, size in pairs)


RULES: Table = {
    "aten._scaled_mm.default": dense(scaled),
    "aten._grouped_mm.default": dense(grouped),
    "aten._int_mm.default": row("m k, k n -> m n", reduce={"k": "sum"}, linear=BILINEAR, work=2),
    "aten._weight_int8pack_mm.default": dense(row("m k, n k, n -> m n", whole=("k",), work=2)),
}
