"""Tensors of integers that follow from shapes, where shapes are open: arrays of expressions.

Models compute with the shapes of their inputs. Where all sizes are numbers, that is done while a
model is imported, and is so here: on arrays whose elements are numbers and expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from autopar.frontend.onnx.ops.shape.layout import as_axes
from autopar.frontend.onnx.trace.node import Node, Refused, Undecided
from autopar.frontend.onnx.trace.ratios import (
    EXACT,
    RATIOS,
    Ratio,
    cast_to_float,
    cast_to_integer,
)
from autopar.ir.expr.expression import (
    Expr,
    IntExpr,
    add,
    maximum,
    minimum,
    multiply,
    shape_str,
)
from autopar.ir.expr.facts import is_at_least, is_equal, is_less
from autopar.ir.expr.periodic import least_value

Expressions = npt.NDArray[Any]
"""An array of objects: numbers and expressions."""

Inputs = Sequence[Expressions | None]

Compute = Callable[[Node, Inputs], Expressions]
"""Returns what a node makes of its inputs."""


def array_of(sizes: Sequence[IntExpr]) -> Expressions:
    """Returns a list of sizes as an array."""
    found = np.empty(len(sizes), dtype=object)
    found[:] = list(sizes)
    return found


def is_known(array: Expressions) -> bool:
    """Returns whether all elements are numbers."""
    numbers = (item.numerator if isinstance(item, Ratio) else item for item in array.flat)
    return not any(isinstance(number, Expr) for number in numbers)


def _elementwise(fold: Callable[[IntExpr, IntExpr], IntExpr]) -> Callable[[Node, Inputs], Any]:
    def run(node: Node, inputs: Inputs) -> Expressions:
        found = reduce(lambda left, right: _each(fold, left, right), map(_given, inputs))
        return np.asarray(found, dtype=object)

    return run


def _each(fold: Callable[[IntExpr, IntExpr], IntExpr], left: Any, right: Any) -> Expressions:
    return np.asarray(np.frompyfunc(fold, 2, 1)(left, right), dtype=object)


def _given(array: Expressions | None) -> Expressions:
    if array is None:
        raise Refused("an input is missing")
    return array


def _minus(left: IntExpr, right: IntExpr) -> IntExpr:
    return left - right


class TooSmall(Undecided):
    """What a node computes of sizes is known where one of them is large enough.

    Args:
        what: What isn't known else.
        size: It.
        least: How large it must be.
    """

    def __init__(self, what: str, size: IntExpr, least: int) -> None:
        super().__init__(what, size)
        self.size = size
        self.least = least


class OpenIndex(Refused):
    """Which elements are taken isn't known while a model is imported."""


def _quotient(left: IntExpr, right: IntExpr) -> IntExpr:
    """ONNX rounds towards 0; that is the same where nothing is negative."""
    if _is_natural(left) and not is_at_least(right, 1) and not isinstance(right, int):
        raise TooSmall(f"{right}, by which it divides, may be 0", right, 1)
    if not _is_natural(left) or not is_at_least(right, 1):
        raise Undecided(
            f"the quotient of {left} and {right} isn't known for every size", left, right
        )
    return left // right


def _is_natural(size: IntExpr) -> bool:
    """Returns whether an expression is never negative, as what lacks to a multiple."""
    if is_at_least(size, 0):
        return True
    least = least_value(size)
    return least is not None and least >= 0


def _remainder(left: IntExpr, right: IntExpr) -> IntExpr:
    return _minus(left, _quotient(left, right) * right)


def _integers(node: Node, name: str, given: Expressions | None) -> list[int] | None:
    """Returns what is an attribute of a node in old opsets, and an input of later ones."""
    if given is None:
        return node.integers(name)
    if not is_known(given):
        raise OpenIndex(f"its {name} {shape_str(given.flat)} are open")
    return [int(item) for item in given.flat]


def _gather(node: Node, inputs: Inputs) -> Expressions:
    data, index = _given(inputs[0]), _given(inputs[1])
    if not is_known(index):
        raise OpenIndex(f"its indexes {shape_str(index.flat)} are open")
    return np.asarray(np.take(data, index.astype(np.int64), axis=node.integer("axis")), object)


def _slice(node: Node, inputs: Inputs) -> Expressions:
    data = _given(inputs[0])
    more = [*inputs[1:], *[None] * 4]
    starts, ends, axes, steps = (
        _integers(node, name, given)
        for name, given in zip(("starts", "ends", "axes", "steps"), more, strict=False)
    )
    if starts is None or ends is None:
        raise Refused("it says neither where it starts nor where it ends")
    along = as_axes(axes if axes is not None else range(len(starts)), data.ndim)
    taken = [slice(None)] * data.ndim
    for axis, start, end, step in zip(along, starts, ends, steps or [1] * len(starts), strict=True):
        last = None if step < 0 and end < -data.shape[axis] else end
        taken[axis] = slice(start, last, step)
    return data[tuple(taken)]


def _concat(node: Node, inputs: Inputs) -> Expressions:
    return np.concatenate([_given(each) for each in inputs], axis=node.integer("axis"))


def _unsqueeze(node: Node, inputs: Inputs) -> Expressions:
    data = _given(inputs[0])
    axes = _integers(node, "axes", inputs[1] if len(inputs) > 1 else None) or []
    for axis in sorted(as_axes(axes, data.ndim + len(axes))):
        data = np.expand_dims(data, axis)
    return data


def _squeeze(node: Node, inputs: Inputs) -> Expressions:
    axes = _integers(node, "axes", inputs[1] if len(inputs) > 1 else None)
    data = _given(inputs[0])
    return data.reshape(data.squeeze(None if axes is None else tuple(axes)).shape)


def _reshape(node: Node, inputs: Inputs) -> Expressions:
    shape = _integers(node, "shape", inputs[1] if len(inputs) > 1 else None)
    data = _given(inputs[0])
    wanted = [data.shape[at] if size == 0 else size for at, size in enumerate(shape or ())]
    return data.reshape(wanted)


def _reduce(fold: Callable[[IntExpr, IntExpr], IntExpr]) -> Callable[[Node, Inputs], Any]:
    def run(node: Node, inputs: Inputs) -> Expressions:
        data = _given(inputs[0])
        if data.ndim != 1:
            raise Refused("a reduction of open sizes over several dimensions")
        keeps = node.flag("keepdims", True)
        total = reduce(fold, data.flat)
        return array_of([total]) if keeps else array_of([total]).reshape(())

    return run


def _where(node: Node, inputs: Inputs) -> Expressions:
    condition, then, otherwise = map(_given, inputs)
    if not is_known(condition):
        raise Refused("its condition is open")
    choose = np.frompyfunc(lambda which, left, right: left if which else right, 3, 1)
    return np.asarray(choose(condition, then, otherwise), dtype=object)


def _compared(
    holds: Callable[[IntExpr, IntExpr], bool | None],
) -> Callable[[Node, Inputs], Any]:
    def run(node: Node, inputs: Inputs) -> Expressions:
        def decide(left: IntExpr, right: IntExpr) -> bool:
            found = holds(left, right)
            if found is None:
                what = f"how {left} and {right} compare isn't the same for every size"
                raise Undecided(what, left, right)
            return found

        return np.asarray(np.frompyfunc(decide, 2, 1)(*map(_given, inputs)), dtype=object)

    return run


def _not(decide: Callable[[IntExpr, IntExpr], bool | None], *, swapped: bool = False) -> Any:
    def run(left: IntExpr, right: IntExpr) -> bool | None:
        found = decide(right, left) if swapped else decide(left, right)
        return None if found is None else not found

    return run


def _same(node: Node, inputs: Inputs) -> Expressions:
    return _given(inputs[0])


SIZED: Mapping[str, Compute] = {
    "Identity": _same,
    "Cast": _same,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Add": _elementwise(add),
    "Sub": _elementwise(_minus),
    "Mul": _elementwise(multiply),
    "Div": _elementwise(_quotient),
    "Mod": _elementwise(_remainder),
    "Min": _elementwise(minimum),
    "Max": _elementwise(maximum),
    "ReduceProd": _reduce(multiply),
    "ReduceSum": _reduce(add),
    "Where": _where,
    "Equal": _compared(is_equal),
    "Less": _compared(is_less),
    "LessOrEqual": _compared(_not(is_less, swapped=True)),
    "Greater": _compared(lambda left, right: is_less(right, left)),
    "GreaterOrEqual": _compared(_not(is_less)),
}
"""What computes with open sizes while a model is imported, by ONNX operator."""

_LAID_OUT = ("Identity", "Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape")
"""Operators that take elements as they are."""


def computation(op_type: str, given: torch.dtype, wanted: torch.dtype) -> Compute | None:
    """Returns what computes an operator of sizes; None if that is left to the program.

    Args:
        op_type: The operator.
        given: The dtype of the sizes.
        wanted: That of the result; it differs where the operator casts.
    """
    if not given.is_floating_point and not wanted.is_floating_point:
        return SIZED.get(op_type)
    if given not in EXACT and wanted not in EXACT:
        return None
    if op_type == "Cast":
        if given.is_floating_point == wanted.is_floating_point:
            return _same if given in EXACT and wanted in EXACT else None
        if wanted.is_floating_point:
            return cast_to_float
        return cast_to_integer if wanted in (torch.int32, torch.int64) else None
    return SIZED[op_type] if op_type in _LAID_OUT else RATIOS.get(op_type)
