"""Takes the dropouts that `torch.export` leaves whole apart, into ops that draw and ops that don't.

`aten.dropout` and its kin hide whether they draw behind an argument. What doesn't drop anything is
its operand. What does becomes `aten.native_dropout`, or a draw of zeros and ones and the arithmetic
of `torch/aten/src/ATen/native/Dropout.cpp` on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Arg, DType, Function, Op, Ref, Value

SELU_ALPHA = 1.7580993408473766
"""What `alpha_dropout` sets elements to, negated: the limit of SELU."""


def is_resting(node: fx.Node) -> bool:
    """Returns whether a node is a dropout that drops nothing."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = f"{target.namespace}.{target._opname}.{target._overloadname}"
    if name not in DROPOUTS:
        return False
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given["train"] is False or bool(given["p"] == 0.0)


def plain_dropouts(function: Function) -> Function:
    """Returns the function with each dropout as ops that `autopar.frontend.lower.random` knows."""
    if not any(op.kind in DROPOUTS for op in function.ops):
        return function
    values = dict(function.values)
    ops = [plain for op in function.ops for plain in _plain(op, values)]
    return replace(function, ops=tuple(ops), values=values)


def _plain(op: Op, values: dict[str, Value]) -> Sequence[Op]:
    if op.kind not in DROPOUTS:
        return [op]
    return list(DROPOUTS[op.kind](_Writer(op, values)))


class _Writer:
    """Makes the ops that stand for a dropout.

    Args:
        op: The dropout.
        values: Values by name; those between the ops are added.
    """

    def __init__(self, op: Op, values: dict[str, Value]) -> None:
        self.op = op
        self.values = values
        self.result = values[op.results[0]]
        self.operand = Ref(op.operands[0])
        chance = op.arg("p")
        self.chance = float(chance) if isinstance(chance, (int, float)) else 0.0

    def value(self, hint: str, shape: Sequence[IntExpr], dtype: str) -> str:
        """Adds a value and returns its name."""
        name, count = f"{self.result.name}.{hint}", 0
        while name in self.values:
            count += 1
            name = f"{self.result.name}.{hint}.{count}"
        self.values[name] = Value(name, dtype, tuple(shape))
        return name

    def write(self, kind: str, result: str, /, *more: str, **args: Arg) -> Op:
        """Returns an op at the dropout's place."""
        return replace(self.op, kind=kind, args=tuple(args.items()), results=(result, *more))

    def noise(self, shape: Sequence[IntExpr]) -> tuple[str, list[Op]]:
        """Returns a tensor of this shape that is 0 where the dropout drops, else 1, and its ops."""
        dtype = self.result.dtype
        empty, noise = self.value("empty", shape, dtype), self.value("noise", shape, dtype)
        return noise, [
            self.write("aten.zeros.default", empty, size=tuple(shape), dtype=DType(dtype)),
            self.write("aten.bernoulli.p", noise, self=Ref(empty), p=1.0 - self.chance),
        ]


Write = Callable[[_Writer], Iterator[Op]]


def _elements(writer: _Writer) -> Iterator[Op]:
    mask = writer.value("mask", writer.result.global_shape, "bool")
    yield writer.write(
        "aten.native_dropout.default",
        writer.result.name,
        mask,
        input=writer.operand,
        p=writer.chance,
        train=True,
    )


def _features(writer: _Writer) -> Iterator[Op]:
    if writer.chance == 1.0:
        yield _nothing(writer)
        return
    noise, ops = writer.noise(_feature_shape(writer))
    scaled = writer.value("scaled", _feature_shape(writer), writer.result.dtype)
    yield from ops
    yield writer.write("aten.div.Tensor", scaled, self=Ref(noise), other=1.0 - writer.chance)
    yield writer.write(
        "aten.mul.Tensor", writer.result.name, self=writer.operand, other=Ref(scaled)
    )


def _alpha(shape_of: Callable[[_Writer], Sequence[IntExpr]]) -> Write:
    """Returns how the dropouts that keep mean and variance of SELU's results are written."""

    def write(writer: _Writer) -> Iterator[Op]:
        chance = writer.chance
        if chance == 1.0:
            yield _nothing(writer)
            return
        factor = 1.0 / math.sqrt((SELU_ALPHA**2 * chance + 1) * (1 - chance))
        low = SELU_ALPHA * factor
        shape, dtype = shape_of(writer), writer.result.dtype
        noise, ops = writer.noise(shape)
        scale, drop, shift = (writer.value(hint, shape, dtype) for hint in ("scale", "drop", "b"))
        kept = writer.value("kept", writer.result.global_shape, dtype)
        yield from ops
        yield writer.write("aten.mul.Tensor", scale, self=Ref(noise), other=factor)
        yield writer.write("aten.mul.Tensor", drop, self=Ref(noise), other=low)
        yield writer.write("aten.add.Tensor", shift, self=Ref(drop), other=low * chance - low)
        yield writer.write("aten.mul.Tensor", kept, self=writer.operand, other=Ref(scale))
        yield writer.write("aten.add.Tensor", writer.result.name, self=Ref(kept), other=Ref(shift))

    return write


def _nothing(writer: _Writer) -> Op:
    """Returns the op for a dropout that drops everything: NaN and infinities become NaN."""
    return writer.write("aten.mul.Tensor", writer.result.name, self=writer.operand, other=0.0)


def _whole_shape(writer: _Writer) -> Sequence[IntExpr]:
    return writer.result.global_shape


def _feature_shape(writer: _Writer) -> Sequence[IntExpr]:
    """The shape of one decision per feature: [batch, features, 1, ...]."""
    shape = writer.result.global_shape
    return (*shape[:2], *(1 for _ in shape[2:]))


DROPOUTS: Mapping[str, Write] = {
    "aten.dropout.default": _elements,
    "aten.feature_dropout.default": _features,
    "aten.alpha_dropout.default": _alpha(_whole_shape),
    "aten.feature_alpha_dropout.default": _alpha(_feature_shape),
}
"""How each dropout that drops something is written."""
