"""Ops on diagonals and triangles of matrices.

Which element is on a diagonal depends on both of its indices, so the ops themselves don't split
rows or columns, but triangles do: a block of a triangular matrix is one about another diagonal.
Where a diagonal meets every row, or every column, its elements are split like these: a body makes
it of the triangles whose edge it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.ir.expr.expression import IntExpr
from autopar.ir.expr.facts import larger, smaller
from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.shape.sizes import integer
from autopar.ir.ops.table import (
    FIRST,
    MOVED,
    ZERO_FILLED,
    Table,
    axis,
    chosen,
    factors,
    same,
)
from autopar.ir.program import Arg, DType, Ref
from autopar.ir.rules.local_arg import Offset, Sizes
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule, make_rule


@dataclass(frozen=True)
class Diagonal:
    """A diagonal of the matrices in two dimensions of a tensor.

    Attributes:
        shape: Shape of the tensor.
        first, second: The dimensions of rows and columns.
        offset: How far to the right of the main diagonal it is.
    """

    shape: tuple[IntExpr, ...]
    first: int
    second: int
    offset: int

    @property
    def others(self) -> list[int]:
        """The other dimensions."""
        return [at for at in range(len(self.shape)) if at not in (self.first, self.second)]

    @property
    def length(self) -> IntExpr:
        """The number of its elements in each matrix."""
        rows = self.shape[self.first] + min(self.offset, 0)
        columns = self.shape[self.second] - max(self.offset, 0)
        return larger(0, smaller(rows, columns))

    @property
    def every(self) -> int | None:
        """The dimension whose every index it meets once, the rows first; None if there is none."""
        both = (self.first, self.second)
        return next((at for at in both if self.shape[at] == self.length), None)

    @property
    def matrix_dims(self) -> Dims:
        """The factors of the tensor."""
        return factors("i", len(self.shape))

    @property
    def dims(self) -> Dims:
        """The factors of the diagonal: the other dimensions, then its elements."""
        every = "d" if self.every is None else f"i{self.every}"
        return (*((f"i{at}",) for at in self.others), (every,))

    @property
    def whole(self) -> list[str]:
        """The factors that an op without a body must not split."""
        return [f"i{self.first}", f"i{self.second}", "d"]

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions of the tensor with the matrices last."""
        return (*self.others, self.first, self.second)


def _of(call: OpCall, shape: Sequence[IntExpr], defaults: tuple[int, int] = (0, 1)) -> Diagonal:
    """Returns the diagonal, of a tensor of this shape, that `offset`, `dim1` and `dim2` name."""
    first, second = (
        axis(call, len(shape), name, default)
        for name, default in zip(("dim1", "dim2"), defaults, strict=True)
    )
    return Diagonal(tuple(shape), first, second, call.integer("offset", 0))


def diagonal(call: OpCall) -> Rule | None:
    """aten.diagonal: a new last dimension instead of `dim1` and `dim2`."""
    found = _of(call, call.operands[0].shape)

    def make(split: bool) -> Rule:
        summed = dict.fromkeys(found.whole, "sum") if split else None
        return build_rule(
            call,
            [found.matrix_dims],
            [found.dims],
            whole=() if split else found.whole,
            reduce=summed,
            linear=FIRST if split else MOVED,
            work=1 if split else 0,
        )

    def write(w: BodyWriter) -> None:
        only = _band(w, _matrices_last(w, w.required("self"), found), found.offset)
        target = w.value(w.op.results[0])
        args: dict[str, Arg] = {
            "self": Ref(only),
            "dim": (-1 if found.every == found.first else -2,),
            "dtype": DType(target.dtype),
        }
        w.emit("aten.sum.dim_IntList", args, target.global_shape, target.dtype, target.name)

    # There is no sum of truth values.
    if found.every is None or call.results[0].dtype == "bool":
        return make(False)
    return with_bodies(make, "triangles", write)


def embedded(call: OpCall, found: Diagonal) -> Rule | None:
    """Returns the rule of an op whose operand becomes the diagonal of zeros."""
    sized = "input_sizes" in call.args

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            [found.dims],
            [found.matrix_dims],
            whole=() if split else found.whole,
            linear=ZERO_FILLED,
            local={"input_sizes": Sizes(found.matrix_dims)} if sized else None,
            work=1 if split else 0,
        )

    def write(w: BodyWriter) -> None:
        name = "self" if w.name("self") else "grad_output"
        _write_embedded(w, w.required(name), found, w.op.results[0])

    return make(False) if found.every is None else with_bodies(make, "triangles", write)


def diag_embed(call: OpCall) -> Rule | None:
    """aten.diag_embed: the last dimension becomes the diagonal of `dim1` and `dim2`."""
    return embedded(call, _of(call, call.results[0].shape, (-2, -1)))


def diagonal_backward(call: OpCall) -> Rule | None:
    """aten.diagonal_backward."""
    return embedded(call, _of(call, call.results[0].shape))


def diagonal_scatter(call: OpCall) -> Rule | None:
    """aten.diagonal_scatter: `src` replaces a diagonal."""
    found = _of(call, call.operands[0].shape)

    def make(split: bool) -> Rule:
        return build_rule(
            call,
            [found.matrix_dims, found.dims],
            [found.matrix_dims],
            whole=() if split else found.whole,
            linear=chosen(0, 1),
            work=3 if split else 0,
        )

    def write(w: BodyWriter) -> None:
        x = _matrices_last(w, w.required("self"), found)
        below = w.like("aten.tril.default", x, diagonal=found.offset - 1)
        above = w.like("aten.triu.default", x, diagonal=found.offset + 1)
        around = _matrices_back(w, w.combine("aten.add.Tensor", below, above), found)
        inserted = _write_embedded(w, w.required("src"), found)
        w.combine("aten.add.Tensor", around, inserted, w.op.results[0])

    return make(False) if found.every is None else with_bodies(make, "triangles", write)


def _band(w: BodyWriter, x: str, offset: int) -> str:
    """Adds ops that keep one diagonal of the last two dimensions and clear all else."""
    upper = w.like("aten.triu.default", x, diagonal=offset)
    return w.like("aten.tril.default", upper, diagonal=offset)


def _matrices_last(w: BodyWriter, x: str, found: Diagonal) -> str:
    return _permuted(w, x, found.order)


def _matrices_back(w: BodyWriter, x: str, found: Diagonal, result: str | None = None) -> str:
    back = sorted(range(len(found.order)), key=lambda at: found.order[at])
    return _permuted(w, x, tuple(back), result)


def _permuted(w: BodyWriter, x: str, order: tuple[int, ...], result: str | None = None) -> str:
    if result is None and order == tuple(range(len(order))):
        return x
    value = w.value(x)
    shape = [value.global_shape[at] for at in order]
    args: dict[str, Arg] = {"self": Ref(x), "dims": order}
    return w.emit("aten.permute.default", args, shape, value.dtype, result)


def _write_embedded(w: BodyWriter, x: str, found: Diagonal, result: str | None = None) -> str:
    """Adds ops that make matrices with the diagonal `x`: repeat it, and clear all around it."""
    value = w.value(x)
    shape = list(value.global_shape)
    shape.insert(len(shape) - (found.every == found.second), 1)
    column = w.reshape(x, shape)
    matrices = tuple(found.shape[at] for at in found.order)
    args: dict[str, Arg] = {"self": Ref(column), "size": matrices}
    repeated = w.emit("aten.expand.default", args, matrices, value.dtype)
    return _matrices_back(w, _band(w, repeated, found.offset), found, result)


def triangle(call: OpCall) -> Rule | None:
    """aten.tril and aten.triu: which elements are kept depends on both indices."""
    local = {"diagonal": Offset("r", base=integer(call, "diagonal"), minus="c")}
    return make_rule("*b r c -> *b r c", call, linear=ZERO_FILLED, local=local, work=0)


RULES: Table = {
    **same(["aten.diagonal.default", "aten.diagonal_copy.default"], diagonal),
    "aten.diag_embed.default": diag_embed,
    "aten.diagonal_backward.default": diagonal_backward,
    "aten.diagonal_scatter.default": diagonal_scatter,
    **same(["aten.tril.default", "aten.triu.default"], triangle),
}
