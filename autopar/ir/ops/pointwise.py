"""Elementwise ops with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autopar.ir.rule import Dims, Linear, OpCall, Rule, build_rule


def broadcast_dims(shape: Sequence[int], result: Sequence[int]) -> Dims:
    """Returns an operand's factors: dimensions align from the right, size 1 is broadcast."""
    skip = len(result) - len(shape)
    return tuple(
        (f"i{skip + at}",) if size == result[skip + at] else () for at, size in enumerate(shape)
    )


def pointwise(*linear: Linear) -> Callable[[OpCall], Rule | None]:
    """Returns the rule function of an elementwise op with this linearity."""

    def rule(call: OpCall) -> Rule | None:
        shape = call.results[0].shape
        operands = [broadcast_dims(operand.shape, shape) for operand in call.operands]
        results = [broadcast_dims(result.shape, shape) for result in call.results]
        present = frozenset(range(len(call.operands)))
        usable = [row for row in linear if row.operands <= present]
        return build_rule(call, operands, results, linear=usable)

    return rule


BOTH = Linear(frozenset((0, 1)))
LEFT = Linear(frozenset((0,)))
RIGHT = Linear(frozenset((1,)))

RULES: Mapping[str, Callable[[OpCall], Rule | None]] = {
    "aten.relu.default": pointwise(),
    "aten.mul.Tensor": pointwise(LEFT, RIGHT),
}
