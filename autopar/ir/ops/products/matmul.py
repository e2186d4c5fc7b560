"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.ir.dtypes import INEXACT
from autopar.ir.emitted import ADD_PRODUCT
from autopar.ir.expr.expression import IntExpr
from autopar.ir.memory.strides import Placed, Shape
from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.table import BILINEAR, RuleFunction, Table, factors, pending, row, same
from autopar.ir.program import Arg, DType, Ref
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule, make_rule

BIAS_LINEAR = (pending(0, 1), pending(0, 2))
"""Linear in the bias and one of the two factors."""


def _aligned(shape: Sequence[IntExpr], result: Sequence[IntExpr], dims: Dims) -> Dims:
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

        return with_bodies(make, "product", write)

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

    return with_bodies(make, "product", write)


def summed_product(call: OpCall) -> Rule | None:
    """aten.addbmm: products of matrices are summed over the batch; the body adds the bias."""
    dims: list[Dims] = [tuple((name,) for name in text) for text in ("bmk", "bkn", "mn")]
    bias = _aligned(call.operands[0].shape, call.results[0].shape, dims[2])

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            [bias, *dims[:2]],
            dims[2:],
            reduce=dict.fromkeys("bk", "sum"),
            whole=() if split else ("b", "k"),
            linear=BIAS_LINEAR,
            work=2,
        )

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        args: dict[str, Arg] = {
            "self": Ref(w.required("batch1")),
            "mat2": Ref(w.required("batch2")),
        }
        shape = (call.operands[1].shape[0], *target.global_shape)
        products = w.emit("aten.bmm.default", args, shape, target.dtype)
        total: dict[str, Arg] = {"self": Ref(products), "dim": (0,)}
        if target.dtype not in INEXACT:
            total["dtype"] = DType(target.dtype)
        found = w.emit("aten.sum.dim_IntList", total, target.global_shape, target.dtype)
        _scale_and_add(w, found, w.required("self"))

    return with_bodies(make, "product", write)


def outer_product(call: OpCall) -> Rule | None:
    """aten.addr: `beta * bias + alpha * (left x right)`."""
    dims: Dims = (("m",), ("n",))
    bias = _aligned(call.operands[0].shape, call.results[0].shape, dims)
    return build_rule(call, [bias, dims[:1], dims[1:]], [dims], linear=BIAS_LINEAR, work=2)


def activated(call: OpCall) -> Rule | None:
    """aten._addmm_activation: addmm, then relu or gelu, which need the whole sum."""
    dims: Dims = (("m",), ("n",))
    bias = _aligned(call.operands[0].shape, call.results[0].shape, dims)
    operands: list[Dims] = [bias, (("m",), ("k",)), (("k",), ("n",))]
    return build_rule(call, operands, [dims], whole=("k",), work=2)


def trilinear(call: OpCall) -> Rule | None:
    """aten._trilinear: three tensors, stretched along dimensions, multiplied and summed."""
    rank = len(call.operands[0].shape) + len(call.integers("expand1"))
    gone = [at % rank for at in call.integers("sumdim")]
    sizes: list[IntExpr] = [1] * rank
    kept = [
        [at for at in range(rank) if at not in {n % rank for n in call.integers(f"expand{which}")}]
        for which in (1, 2, 3)
    ]
    for tensor, places in zip(call.operands, kept, strict=True):
        for size, at in zip(tensor.shape, places, strict=True):
            sizes[at] = size if sizes[at] == 1 else sizes[at]
    operands: list[Dims] = [
        tuple((f"i{at}",) if n == sizes[at] else () for n, at in zip(t.shape, places, strict=True))
        for t, places in zip(call.operands, kept, strict=True)
    ]
    result = tuple((f"i{at}",) for at in range(rank) if at not in gone)
    return build_rule(
        call,
        operands,
        [result],
        reduce={f"i{at}": "sum" for at in gone},
        linear=[pending(at) for at in range(3)],
        work=2,
    )


def _product(text: str) -> RuleFunction:
    return row(text, reduce={"k": "sum"}, linear=BILINEAR, work=2)


def add_product(call: OpCall) -> Rule | None:
    """autopar.add_product: a total, to which a product is added that is cast to its dtype."""
    dims = [(("m",), ("n",)), (("m",), ("k",)), (("k",), ("n",))]
    return build_rule(call, dims, dims[:1], whole=["k"], linear=BIAS_LINEAR, work=2)


def rows_at_once(rows: int, columns: int) -> int:
    """Returns of how many rows `autopar.add_product` makes the product at once on a CPU.

    Measured for 768 columns: half as many or twice as many take about as long.
    """
    return max(1, min(rows, _AT_ONCE // max(1, columns)))


_AT_ONCE = 1 << 20
"""Elements of a product that are added at once."""


def add_product_bytes(
    args: Mapping[str, Arg], operands: Sequence[Placed], results: Sequence[Shape]
) -> int:
    """Returns the bytes of a product that are there at once, with what rounding has left of it."""
    rows, columns = operands[0].shape
    return 2 * rows_at_once(rows, columns) * columns * operands[1].itemsize


RULES: Table = {
    "aten.mm.default": _product("m k, k n -> m n"),
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
    ADD_PRODUCT: add_product,
    "aten.addbmm.default": summed_product,
    "aten.addr.default": outer_product,
    "aten._addmm_activation.default": activated,
    "aten._trilinear.default": trilinear,
}
