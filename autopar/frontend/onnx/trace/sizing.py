"""Sizing: what nodes make of open sizes, as expressions, beside what torch records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from autopar.frontend.onnx.model.dtypes import ElementType, element_type_of
from autopar.frontend.onnx.trace.node import Node, Undecided, as_array
from autopar.frontend.onnx.trace.ratios import Inexact, Ratio, ratios_of
from autopar.frontend.onnx.trace.sized import (
    Compute,
    Expressions,
    OpenIndex,
    TooSmall,
    array_of,
    computation,
    is_known,
)
from autopar.frontend.onnx.trace.trace import Trace
from autopar.frontend.onnx.trace.values import Known, Sized, Traced, Value
from autopar.ir.expr.expression import IntExpr, prod

FEW_CONVERTED = 64
"""Elements up to which the content of a tensor is converted to a dtype that numpy knows."""

ASKING = ("Shape", "Size")
"""Operators that ask for a shape, or the product of its sizes."""


class Sizing:
    """Computes with the open sizes of one model.

    Args:
        trace: What was recorded, which knows them.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def run(self, node: Node, inputs: Sequence[Value]) -> list[Value] | None:
        """Returns what a node makes of shapes that are open; None if it isn't about them."""
        shape = self._open_shape(node, inputs)
        if shape is not None:
            whole = array_of([prod(shape)]).reshape(())
            sizes = whole if node.op_type == "Size" else array_of(shape)
            return [_as_value(sizes, element_type_of(torch.int64))]
        sized = [value for value in inputs if isinstance(value, Sized)]
        if not sized or node.domain:
            return None
        unknown = (v is not None and self._expressions(v) is None for v in inputs)
        kind = node.element_type(node.integer("to")) if node.op_type == "Cast" else sized[0].kind
        compute = computation(node.op_type, sized[0].kind.carrier, kind.carrier)
        if compute is None or any(unknown):
            return None
        try:
            return [_as_value(self._narrowed(node, compute, inputs), kind)]
        except (OpenIndex, Inexact):
            return None

    def _narrowed(self, node: Node, compute: Compute, inputs: Sequence[Value]) -> Expressions:
        """Returns what a node makes of sizes, which are narrowed where they must be larger."""
        try:
            return compute(node, [self._expressions(value) for value in inputs])
        except TooSmall as error:
            if not self._trace.sizes.is_at_least(error.size, error.least, node):
                raise
            return compute(node, [self._expressions(value) for value in inputs])

    def _open_shape(self, node: Node, inputs: Sequence[Value]) -> Sequence[IntExpr] | None:
        """Returns the shape that a node asks for, if it is open; None otherwise."""
        if node.domain or node.op_type not in ASKING or not isinstance(inputs[0], Traced):
            return None
        sizes = inputs[0].fake.shape
        shape = [self._trace.sizes.expr(size) for size in sizes]
        if all(isinstance(size, int) for size in shape):
            return None
        return shape[node.integer("start", 0) : node.integer("end", len(shape))]

    def _expressions(self, value: Value) -> Expressions | None:
        """Returns a small known or sized tensor of integers as expressions; else None."""
        if isinstance(value, Sized):
            return np.asarray(np.frompyfunc(self._renewed, 1, 1)(value.array), object)
        if not isinstance(value, Known) or value.tensor.numel() > FEW_CONVERTED:
            return None
        if value.tensor.is_floating_point():
            found: Expressions | None = ratios_of(as_array(value.tensor))
            return found
        return value.tensor.numpy().astype(object)

    def _renewed(self, number: IntExpr | Ratio) -> IntExpr | Ratio:
        """Returns a number with the ranges that its sizes have by now."""
        if isinstance(number, Ratio):
            return Ratio(self._trace.sizes.renewed(number.numerator), number.denominator)
        return self._trace.sizes.renewed(number)

    def symbols(self, value: Sized) -> Expressions:
        """Returns open sizes as torch computes with them.

        Raises:
            Undecided: If they are floating-point numbers.
        """
        for each in value.array.flat:
            if isinstance(each, Ratio):
                raise Undecided(f"it reads {each}, which is open", each.numerator, by_range=False)
        symbols = np.frompyfunc(self._trace.sizes.symbolic, 1, 1)(value.array)
        return np.asarray(symbols, dtype=object)

    def computed(self, value: Sized) -> Traced:
        """Returns open sizes as a tensor that the program computes."""
        if value.traced is None:
            array, dtype = value.array, value.kind.carrier

            def compute() -> torch.Tensor:
                scalars = [self._scalar(number, dtype) for number in array.flat]
                return torch.stack(scalars).reshape(array.shape)

            fake = self._trace.computed(compute)
            value.traced = Traced(fake, self._trace.node_of(fake), value.kind)
        return value.traced

    def _scalar(self, number: IntExpr | Ratio, dtype: torch.dtype) -> torch.Tensor:
        ratio = number if isinstance(number, Ratio) else Ratio(number)
        size: Any = self._trace.sizes.symbolic(ratio.numerator)
        scalar = torch.full((), size, dtype=dtype)
        return scalar if ratio.denominator == 1 else scalar / ratio.denominator


def _as_value(sizes: Expressions, kind: ElementType) -> Value:
    """Returns what became of sizes; numbers and truth values if they are known."""
    if not is_known(sizes):
        return Sized(sizes, kind)
    if kind.carrier.is_floating_point:
        numbers = torch.tensor([float(each.factor) for each in sizes.flat], dtype=kind.carrier)
        return Known(numbers.reshape(sizes.shape), kind)
    is_bool = sizes.size > 0 and all(isinstance(item, bool) for item in sizes.flat)
    known = torch.tensor(sizes.tolist(), dtype=torch.bool if is_bool else torch.int64)
    return Known(known, element_type_of(known.dtype))
