"""Emitted ops: those that passes and the runtime write into programs by themselves.

Who needs a piece of a tensor, or room for one, asks here for the op, and names none:

    emitted.view(sizes).with_operand("x").instead_of(op, "y")  %y = aten.view.default(self=%x, ...)

Collectives (`comm.*`) and control flow (`call`, `repeat`, `barrier`) are the executor's.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import NamedTuple

from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Arg, DType, Op, Ref

Sizes = tuple[IntExpr, ...]

MARK = "autopar.shard.default"
"""The kind of the op that marks its operand within a graph (see `autopar.ir.mark`)."""

ADD = "aten.add.Tensor"
EMPTY = "aten.empty.memory_format"
SLICE, SLICE_BACKWARD = "aten.slice.Tensor", "aten.slice_backward.default"
INSERT = "aten.slice_scatter.default"
TO_DTYPE = "aten._to_copy.default"
TO_PARTIAL = "autopar.to_partial"
"""The kind of the op that keeps a value on one rank of several."""

WINDOW = "autopar.window"
"""The kind of the op that cuts a window out of a whole dimension."""

OFFLOAD = "autopar.offload"
END_OFFLOAD = "autopar.end_offload"
RELOAD = "autopar.reload"
END_RELOAD = "autopar.end_reload"
"""Kinds of transfers (see `autopar.ir.memory.transfers`)."""

OVER = "over"
"""The argument of a transfer to the host that is the stored input whose new content it brings."""


class Emitted(NamedTuple):
    """An op that isn't anywhere yet.

    Attributes:
        kind: Its kind.
        args: Its arguments in schema order, at first without `self`.
    """

    kind: str
    args: tuple[tuple[str, Arg], ...] = ()

    def with_operand(self, operand: str) -> Emitted:
        """Returns it with a value as its first argument, `self`."""
        return Emitted(self.kind, (("self", Ref(operand)), *self.args))

    def instead_of(self, op: Op, result: str) -> Op:
        """Returns the op that is written in the place of another: for its line, in its phase."""
        return replace(op, kind=self.kind, args=self.args, results=(result,))


def unused(name: str, taken: Container[str]) -> str:
    """Returns a name like this one for a result, which no value has."""
    while name in taken:
        name += "_"
    return name


def view(sizes: Sizes) -> Emitted:
    """The same elements in the same order, under other sizes."""
    return Emitted("aten.view.default", (("size", sizes),))


def alias() -> Emitted:
    """The operand as it is, under another name."""
    return Emitted("aten.alias.default")


def slice_(start: IntExpr, end: IntExpr, dim: int | None = None) -> Emitted:
    """The elements from `start` to `end` of a dimension, by default the first, as a view."""
    return Emitted(SLICE, _slice_args(start, end, dim))


def slice_copy(start: IntExpr, end: IntExpr, dim: int | None = None) -> Emitted:
    """The elements from `start` to `end` of a dimension, in memory of their own."""
    return Emitted("aten.slice_copy.Tensor", _slice_args(start, end, dim))


def _slice_args(start: IntExpr, end: IntExpr, dim: int | None) -> tuple[tuple[str, Arg], ...]:
    args: tuple[tuple[str, Arg], ...] = (("start", start), ("end", end))
    return args if dim is None else (("dim", dim), *args)


def insert(source: str, start: IntExpr, end: IntExpr, dim: int) -> Emitted:
    """The operand, but for the elements from `start` to `end` of a dimension, which a value is."""
    return Emitted(INSERT, (("src", Ref(source)), *_slice_args(start, end, dim)))


def window(dim: int, low: IntExpr, high: IntExpr, fill: Arg) -> Emitted:
    """The elements from `low` to `high` of a dimension, `fill` where they are outside."""
    return Emitted(WINDOW, (("dim", dim), ("low", low), ("high", high), ("fill", fill)))


def cat(tensors: Iterable[str], dim: int) -> Emitted:
    """Tensors put together along a dimension; they are all its operands."""
    return Emitted("aten.cat.default", (("tensors", tuple(map(Ref, tensors))), ("dim", dim)))


def stack(tensors: Iterable[str]) -> Emitted:
    """Tensors put together along a new first dimension; they are all its operands."""
    return Emitted("aten.stack.default", (("tensors", tuple(map(Ref, tensors))),))


_COMBINED = {
    "sum": ADD,
    "prod": "aten.mul.Tensor",
    "max": "aten.maximum.default",
    "min": "aten.minimum.default",
    "any": "aten.logical_or.default",
    "all": "aten.logical_and.default",
}
"""The op that combines two values, by the reduction."""

OF_BOOLEANS = {"sum": "any", "max": "any", "prod": "all", "min": "all"}
"""The reduction of booleans that others are."""


def combine(monoid: str, other: str, dtype: str) -> Emitted:
    """The reduction of the operand and another value of the same dtype."""
    kind = _COMBINED[OF_BOOLEANS.get(monoid, monoid) if dtype == "bool" else monoid]
    return Emitted(kind, (("other", Ref(other)),))


def gather(index: str, dim: int) -> Emitted:
    """The elements of the operand along a dimension that an index names."""
    return Emitted("aten.gather.default", (("dim", dim), ("index", Ref(index))))


def times(number: int) -> Emitted:
    """The product of the operand and a number."""
    return Emitted("aten.mul.Scalar", (("other", number),))


def add(number: int) -> Emitted:
    """The sum of the operand and a number."""
    return Emitted("aten.add.Scalar", (("other", number),))


_PRODUCT, _ADDED_PRODUCT = "aten.mm.default", "aten.addmm.default"
ADD_PRODUCT = "autopar.add_product"
"""The op that adds the product of 16-bit values to one of 32 bits."""


def is_product(op: Op) -> bool:
    """Whether an op is a matrix product that `added_product` can add to a value."""
    return op.kind == _PRODUCT


def added_product(total: str, one: str, other: str, *, is_cast: bool) -> Emitted:
    """A value, plus the matrix product of two others.

    Args:
        total: The value.
        one: The left factor.
        other: The right factor.
        is_cast: Whether the product is cast to the dtype of the value.
    """
    operands = {"self": total, "mat1": one, "mat2": other}
    kind = ADD_PRODUCT if is_cast else _ADDED_PRODUCT
    return Emitted(kind, tuple((name, Ref(each)) for name, each in operands.items()))


def to_dtype(dtype: str) -> Emitted:
    """The operand in another dtype."""
    return Emitted(TO_DTYPE, (("dtype", DType(dtype)),))


def clone() -> Emitted:
    """A copy of the operand."""
    return Emitted("aten.clone.default")


def overwrite() -> Emitted:
    """The operand, over which a value is written."""
    return Emitted("aten.copy_.default")


def full(sizes: Sizes, element: bool | int | float, dtype: str) -> Emitted:
    """A tensor whose elements are all the same; it has no operand."""
    args = (("size", sizes), ("fill_value", element), ("dtype", DType(dtype)))
    return Emitted("aten.full.default", args)


def empty(sizes: Sizes, dtype: str) -> Emitted:
    """Room for a tensor, with any content; it has no operand."""
    return Emitted(EMPTY, (("size", sizes), ("dtype", DType(dtype))))


def to_partial(monoid: str, index: IntExpr) -> Emitted:
    """The operand where `index` is 0, and the identity of a reduction elsewhere."""
    return Emitted(TO_PARTIAL, (("monoid", monoid), ("index", index)))


def offload(over: str = "") -> Emitted:
    """The start of a transfer to the host's memory.

    Args:
        over: The stored input there whose new content is transferred; "" for no such.
    """
    return Emitted(OFFLOAD, ((OVER, Ref(over)),) if over else ())


def end_offload(value: str) -> Emitted:
    """The end of a transfer to the host's memory, whose operand is its start.

    Args:
        value: What is transferred.
    """
    return Emitted(END_OFFLOAD, (("of", Ref(value)),))


def reload() -> Emitted:
    """The start of a transfer back from the host's memory."""
    return Emitted(RELOAD)


def end_reload() -> Emitted:
    """The end of a transfer back from the host's memory, whose operand is its start."""
    return Emitted(END_RELOAD)
