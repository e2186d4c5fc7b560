"""Decompositions, inverses and solutions of batches of matrices.

A matrix is computed whole; the batch around it is not, nor are the right-hand sides of an equation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autopar.ir.expr.expression import IntExpr, planned
from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.shape.sizes import label
from autopar.ir.ops.table import FIRST, RuleFunction, Table, dense, operand_dims, pending, same
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.rule import (
    SAME,
    Dims,
    Linear,
    OpCall,
    Rule,
    TensorType,
    build_rule,
    make_rule,
)

OWN = "_"
"""In the text of a matrix: a dimension that must not be split, and is no other tensor's."""


class _Batch:
    """Names the factors of tensors whose leading dimensions broadcast to one batch.

    Dimensions of one size that must not be split share factors, so that a call has as many points
    as its matrices have elements.
    """

    def __init__(self, shape: Sequence[IntExpr]) -> None:
        self.shape = shape
        self.own: dict[str, IntExpr] = {}

    def dims(self, tensor: TensorType, text: str) -> Dims:
        """Returns the factors of a tensor whose last dimensions `text` names."""
        core = text.split()
        count = len(tensor.shape) - len(core)
        if not 0 <= count <= len(self.shape) or tensor.shape == (0,):
            # What wasn't asked for comes as a tensor of shape [0].
            count, core = 0, [OWN] * len(tensor.shape)
        skip = len(self.shape) - count
        lead = tuple(
            (f"b{skip + at}",) if tensor.shape[at] == self.shape[skip + at] else ()
            for at in range(count)
        )
        sizes = tensor.shape[count:]
        return (*lead, *(self._name(*it, sizes) for it in zip(core, range(len(core)), strict=True)))

    def _name(self, name: str, at: int, sizes: Sequence[IntExpr]) -> tuple[str]:
        if name == OWN:
            name = f"w{label(sizes[at])}_{sizes[:at].count(sizes[at])}"
            self.own[name] = sizes[at]
        return (name,)


def matrices(
    operands: Mapping[str, str],
    results: Sequence[str],
    work: float = 2,
) -> RuleFunction:
    """Returns the rule function of an op on batches of matrices, which broadcast.

    Args:
        operands: The last dimensions of each argument that is a tensor; `_` must not be split.
        results: The same per result. A result without a dimension that is split is complete.
        work: Floating-point operations, divided by the elements of a matrix and by the fewer of
            its rows and columns.
    """

    def rule(call: OpCall) -> Rule | None:
        matrix = _matrix(call, operands)
        return _matrices(call, operands, results, work * math.prod(matrix) * min(matrix))

    return rule


def _matrices(
    call: OpCall,
    operands: Mapping[str, str],
    results: Sequence[str],
    work: float,
    linear: Sequence[Linear] = (),
) -> Rule:
    """Returns the rule; `work` is that of one matrix of the batch with all its columns."""
    batches = [
        result.shape[: len(result.shape) - len(text.split())]
        for result, text in zip(call.results, results, strict=True)
        if len(result.shape) >= len(text.split())
    ]
    batch = _Batch(max(batches, key=len, default=()))
    named = {
        name: batch.dims(tensor, text)
        for name, text in operands.items()
        if (tensor := call.tensor(name)) is not None
    }
    produced = [batch.dims(*pair) for pair in zip(call.results, results, strict=True)]
    lead = [f"b{at}" for at in range(len(batch.shape))]
    columns = [name for text in operands.values() for name in text.split() if name != OWN]
    return build_rule(
        call,
        operand_dims(call, named),
        produced,
        whole=list(batch.own),
        reduce=dict.fromkeys((*lead, *columns), SAME),
        linear=linear,
        work=work,
        aside=[*batch.own, *dict.fromkeys(columns)],
    )


def _matrix(call: OpCall, operands: Mapping[str, str]) -> tuple[int, int]:
    """Returns the rows and columns of the matrices of the first operand."""
    tensor = call.tensor(next(iter(operands)))
    rows, columns = tensor.shape[-2:] if tensor and len(tensor.shape) > 1 else (1, 1)
    return planned(rows), planned(columns)


def solution(
    coefficients: Mapping[str, str], right: str, others: Sequence[str] = (), factoring: float = 0
) -> RuleFunction:
    """Returns the rule function of an op that solves equations with many right-hand sides.

    They are the columns of the argument `right`, or its rows if the argument `left` is false.

    Args:
        coefficients: The last dimensions of the other arguments.
        right: Name of the argument.
        others: The last dimensions of results after the solution; they depend on the coefficients.
        factoring: Floating-point operations before the solution, as `work` of `matrices`.
    """

    def rule(call: OpCall) -> Rule | None:
        text = "_ k" if call.flag("left", True) else "k _"
        if call.kind == "aten._linalg_solve_ex.default" and _is_vector(call, "A", right):
            text = OWN
        linear = () if others else (pending(call.positions[right][0]),)
        matrix = _matrix(call, coefficients)
        side = call.operands[call.positions[right][0]].shape[-2:]
        sides = planned(side[text.split().index("k")]) if "k" in text and len(side) == 2 else 1
        work = math.prod(matrix) * (factoring * min(matrix) + 2 * sides)
        return _matrices(call, {**coefficients, right: text}, (text, *others), work, linear)

    return rule


def _is_vector(call: OpCall, left: str, right: str) -> bool:
    """Whether the right-hand side is one vector per matrix, as torch.linalg.solve decides it."""
    matrix, sides = call.tensor(left), call.tensor(right)
    if matrix is None or sides is None:
        return False
    return len(sides.shape) == 1 or sides.shape == matrix.shape[:-1]


def least_squares(call: OpCall) -> Rule | None:
    """aten.linalg_lstsq: solution, residuals, rank and singular values.

    Right-hand sides must not be split: without any, the kernel computes no rank.
    """
    sides = ONE if _is_vector(call, "self", "b") else TWO
    given = call.tensor("b")
    matrix = _matrix(call, {"self": TWO})
    columns = planned(given.shape[-1]) if given and sides == TWO else 1
    work = 2 * math.prod(matrix) * (min(matrix) + columns)
    return _matrices(call, {"self": TWO, "b": sides}, (sides, ONE, "", ONE), work)


def trace(call: OpCall) -> Rule | None:
    """aten.trace. Its body picks the diagonal by a mask, which may be split."""

    def make(split: bool) -> Rule:
        whole = () if split else ("r", "c")
        return make_rule(
            "r c ->", call, reduce=dict.fromkeys("rc", "sum"), whole=whole, linear=FIRST
        )

    def write(w: BodyWriter) -> None:
        shape, target = call.operands[0].shape, w.value(w.op.results[0])
        row, column = (w.indices(shape, (at,)) for at in (0, 1))
        args: dict[str, Arg] = {"self": Ref(row), "other": Ref(column)}
        mask = w.emit("aten.eq.Tensor", args, shape, "bool")
        args = {"condition": Ref(mask), "self": Ref(w.required("self")), "other": 0}
        kept = w.emit("aten.where.ScalarOther", args, shape, call.operands[0].dtype)
        w.emit("aten.sum.default", {"self": Ref(kept)}, (), target.dtype, target.name)

    return with_bodies(make, "masked", write)


ONE, TWO = "_", "_ _"
"""A vector and a matrix."""

RULES: Table = {
    "aten._linalg_det.default": dense(matrices({"A": TWO}, ("", TWO, ONE))),
    "aten._linalg_slogdet.default": dense(matrices({"A": TWO}, ("", "", TWO, ONE))),
    "aten.linalg_inv_ex.default": matrices({"A": TWO}, (TWO, "")),
    "aten.linalg_cholesky_ex.default": matrices({"self": TWO}, (TWO, "")),
    **same(
        [f"aten.{name}.default" for name in ("cholesky", "cholesky_inverse")],
        matrices({"self": TWO}, (TWO,)),
    ),
    # Five products for the polynomial, and some to square what is scaled down.
    "aten.linalg_matrix_exp.default": matrices({"self": TWO}, (TWO,), work=16),
    # By way of singular values, of small matrices whose steps wait for one another.
    "aten.linalg_pinv.atol_rtol_tensor": matrices(
        {"self": TWO, "atol": "", "rtol": ""}, (TWO,), work=30
    ),
    "aten._linalg_eigh.default": matrices({"A": TWO}, (ONE, TWO), work=10),
    # Golub and Van Loan, Matrix Computations, 7.5.6: 25 n^3, or 10 n^3 for the values alone.
    "aten.linalg_eig.default": matrices({"self": TWO}, (ONE, TWO), work=25),
    "aten._linalg_eigvals.default": matrices({"self": TWO}, (ONE,), work=10),
    "aten._linalg_svd.default": matrices({"A": TWO}, (TWO, ONE, TWO), work=10),
    "aten.linalg_qr.default": matrices({"A": TWO}, (TWO, TWO)),
    "aten.geqrf.default": matrices({"self": TWO}, (TWO, ONE)),
    "aten.linalg_householder_product.default": matrices({"input": TWO, "tau": ONE}, (TWO,)),
    "aten.ormqr.default": solution({"self": TWO, "input2": ONE}, "input3"),
    "aten.linalg_lu.default": matrices({"A": TWO}, (TWO, TWO, TWO)),
    "aten.linalg_lu_factor_ex.default": matrices({"A": TWO}, (TWO, ONE, "")),
    "aten.lu_unpack.default": matrices({"LU_data": TWO, "LU_pivots": ONE}, (TWO, TWO, TWO), work=0),
    "aten.linalg_lu_solve.default": solution({"LU": TWO, "pivots": ONE}, "B"),
    "aten.linalg_ldl_factor_ex.default": matrices({"self": TWO}, (TWO, ONE, "")),
    "aten.linalg_ldl_solve.default": solution({"LD": TWO, "pivots": ONE}, "B"),
    "aten.linalg_solve_triangular.default": solution({"self": TWO}, "B"),
    "aten._linalg_solve_ex.default": solution({"A": TWO}, "B", (TWO, ONE, ""), factoring=2),
    "aten.triangular_solve.default": solution({"A": TWO}, "self", (TWO,)),
    "aten.cholesky_solve.default": solution({"input2": TWO}, "self"),
    "aten.linalg_lstsq.default": least_squares,
    "aten.trace.default": trace,
}
