"""Matrix products, and ops on batches of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.table import BILINEAR, RuleFunction, Table, factors, pending, row, same
from autopar.ir.program import Arg, Ref
from autopar.ir.rule import Dims, OpCall, Rule, build_rule, make_rule

BIAS_LINEAR = (pending(0, 1), pending(0, 2))
"""Linear in the bias and one of the two factors."""


def _aligned(shape: Sequence[int], result: Sequence[int], dims: Dims) -> Dims:
    """Returns the factors of an operand that broadcasts to a result with these factors."""
    skip = len(result) - len(shape)
    return tuple(
        dims[skip + at] if size == result[skip + at] else () for at, size in enumerate(shape)
    )


def biased(
    left: str, right: str, result: str, product: str, names: tuple[str, str, str]
) -> RuleFunction:
    """Returns the rule function of `beta * bias + alpha * (left @ right)`.

    Args:
        left, right, result: The factors of the product, `k` being the sum.
        product: The op that computes the product alone; the body multiplies, then adds.
        names: Names of the arguments: bias, left, right.
    """
    dims = [tuple((name,) for name in text.split()) for text in (left, right, result)]

    def rule(call: OpCall) -> Rule | None:
        bias = _aligned(call.operands[0].shape, call.results[0].shape, dims[2])

        def make(split: bool) -> Rule:
            return build_rule(
                call,
                [bias, dims[0], dims[1]],
                [dims[2]],
                reduce={"k": "sum"},
                whole=() if split else ("k",),
                linear=BIAS_LINEAR,
                work=2,
            )

        def write(w: BodyWriter) -> None:
            target = w.value(w.op.results[0])
            second = "vec" if product.startswith("aten.mv") else "mat2"
            args: dict[str, Arg] = {
                "self": Ref(w.required(names[1])),
                second: Ref(w.required(names[2])),
            }
            found = w.emit(product, args, target.global_shape, target.dtype)
            _scale_and_add(w, found, w.required(names[0]))

        return with_bodies(call, make, "product", write)

    return rule


def _scale_and_add(w: BodyWriter, product: str, bias: str) -> None:
    alpha, beta = w.op.arg("alpha", 1), w.op.arg("beta", 1)
    result = w.op.results[0]
    if beta == 0:
        # The bias is ignored, even where it isn't a number.
        w.like("aten.mul.Scalar", product, result, other=alpha)
        return
    if alpha != 1:
        product = w.like("aten.mul.Scalar", product, other=alpha)
    if beta != 1:
        bias = w.like("aten.mul.Scalar", bias, other=beta)
    w.combine("aten.add.Tensor", product, bias, result)


def matmul(call: OpCall) -> Rule | None:
    """aten.matmul: batch dimensions broadcast, vectors have one dimension."""
    left, right = (operand.shape for operand in call.operands)
    rows, columns = len(left) > 1, len(right) > 1
    batch = len(call.results[0].shape) - rows - columns
    result: Dims = (*factors("b", batch), *([("m",)] * rows), *([("n",)] * columns))
    shape = call.results[0].shape[:batch]
    head = _aligned(left[:-2], shape, result[:batch])
    tail = _aligned(right[:-2], shape, result[:batch])
    operands: list[Dims] = [
        (*head, *([("m",)] * rows), ("k",)),
        (*tail, ("k",), *([("n",)] * columns)),
    ]
    return build_rule(call, operands, [result], reduce={"k": "sum"}, linear=BILINEAR, work=2)


def linear(call: OpCall) -> Rule | None:
    """aten.linear: [*b, k] x [n, k], and a bias [n]; the body adds the bias to the product."""
    if len(call.operands) == 2:
        return make_rule("*b k, n k -> *b n", call, reduce={"k": "sum"}, linear=BILINEAR, work=2)

    def make(split: bool) -> Rule:
        return make_rule(
            "*b k, n k, n -> *b n",
            call,
            reduce={"k": "sum"},
            whole=() if split else ("k",),
            linear=(pending(0, 2), pending(1, 2)),
            work=2,
        )

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        args: dict[str, Arg] = {name: Ref(w.required(name)) for name in ("input", "weight")}
        product = w.emit("aten.linear.default", args, target.global_shape, target.dtype)
        w.combine("aten.add.Tensor", product, w.required("bias"), target.name)

    return with_bodies(call, make, "product", write)


def _product(text: str) -> RuleFunction:
    return row(text, reduce={"k": "sum"}, linear=BILINEAR, work=2)


RULES: Table = {
    "aten.mm.default": _product("m k, k n -> m n"),
    "aten._int_mm.default": _product("m k, k n -> m n"),
    "aten.bmm.default": _product("b m k, b k n -> b m n"),
    "aten.mv.default": _product("m k, k -> m"),
    **same(["aten.dot.default", "aten.vdot.default"], _product("k, k -> ")),
    "aten.addmm.default": biased("m k", "k n", "m n", "aten.mm.default", ("self", "mat1", "mat2")),
    "aten.baddbmm.default": biased(
        "b m k", "b k n", "b m n", "aten.bmm.default", ("self", "batch1", "batch2")
    ),
    "aten.addmv.default": biased("m k", "k", "m", "aten.mv.default", ("self", "mat", "vec")),
    "aten.matmul.default": matmul,
    "aten.linear.default": linear,
    "aten._linalg_det.default": row("*b r c -> *b, *b r c, *b r", whole=("r", "c")),
    **same(
        ["aten.linalg_inv_ex.default", "aten.linalg_cholesky_ex.default"],
        row("*b r c -> *b r c, *b", whole=("r", "c")),
    ),
}
