"""Ops on lists of tensors: the same elementwise op, or the same reduction, for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.pointwise import broadcast_dims
from autopar.ir.ops.table import RuleFunction, Table, factors, pending, same
from autopar.ir.ops.vector_norm import order_of, write_norm
from autopar.ir.rule import SAME, Dims, Linear, OpCall, Rule, RuleError, build_rule


def _renamed(dims: Dims, number: int) -> Dims:
    """Returns the factors of a list's tensor, told from those of the other tensors."""
    return tuple(tuple(f"t{number}_{name}" for name in dim) for dim in dims)


def _names(dims: list[Dims]) -> set[str]:
    return {name for tensor in dims for dim in tensor for name in dim}


def each(*linear: str) -> RuleFunction:
    """Returns the rule function of an elementwise op on lists, and perhaps a scalar tensor.

    Args:
        linear: Names of arguments, lists that may be pending together.
    """

    def rule(call: OpCall) -> Rule | None:
        results = [
            _renamed(broadcast_dims(result.shape, result.shape), at)
            for at, result in enumerate(call.results)
        ]
        operands = _lists(call)
        reduce = dict.fromkeys(_names(results), SAME)
        rows = [_together(call, linear)] if linear else []
        whole = ("scalars",)
        return build_rule(call, operands, results, reduce=reduce, whole=whole, linear=rows)

    return rule


def _lists(call: OpCall) -> list[Dims]:
    """Returns the factors of each operand.

    Raises:
        RuleError: If an argument is neither a list as long as the results nor one number.
    """
    found: list[Dims] = []
    for name, positions in call.positions.items():
        shapes = [call.operands[at].shape for at in positions]
        if name == "scalars" and positions:
            found.append((("scalars",),))
        elif shapes == [()] and len(call.results) != 1:
            found.append(())
        elif positions and len(positions) != len(call.results):
            raise RuleError(f"{call.kind}: {name} has {len(positions)} tensors")
        else:
            lists = zip(shapes, call.results, strict=False)
            dims = [broadcast_dims(shape, result.shape) for shape, result in lists]
            found.extend(_renamed(tensor, at) for at, tensor in enumerate(dims))
    return found


def _together(call: OpCall, names: tuple[str, ...]) -> Linear:
    return pending(*(at for name in names for at in call.positions.get(name, ())))


def each_norm(call: OpCall) -> Rule | None:
    """aten._foreach_norm and _foreach_powsum: the norm of each tensor, or its sum of powers."""
    order = order_of(call, "ord")
    if order is None:
        return None

    def write(w: BodyWriter, x: str, dims: Sequence[int], dtype: str) -> str:
        return write_norm(w, x, dims, order, dtype)

    return _each_reduced(call, order in (0, 1) or "powsum" in call.kind, write)


def each_maximum(call: OpCall) -> Rule | None:
    """aten._foreach_max: the greatest element of each tensor."""

    def write(w: BodyWriter, x: str, dims: Sequence[int], dtype: str) -> str:
        return w.reduce("aten.amax.default", x, dims)

    return _each_reduced(call, False, write)


def _each_reduced(
    call: OpCall, additive: bool, write_one: Callable[[BodyWriter, str, Sequence[int], str], str]
) -> Rule:
    """Returns the rule of a reduction of each tensor to a number.

    Only sums are split as they are. An empty part has no maximum, and the op must run all the same
    for the parts of the other tensors: the body reduces one tensor after the other.
    """
    tensors = enumerate(call.operands)
    operands = [_renamed(factors("i", len(tensor.shape)), at) for at, tensor in tensors]
    results: list[Dims] = [()] * len(operands)
    reduce = {
        (name, result): "sum" if additive and at == result else SAME
        for at, dims in enumerate(operands)
        for name in _names([dims])
        for result in range(len(operands))
    }

    def make(split: bool) -> Rule:
        whole = () if split else sorted(_names(operands))
        return build_rule(call, operands, results, reduce=reduce, whole=whole)

    def write(w: BodyWriter) -> None:
        for x, name in zip(w.op.operands, w.op.results, strict=True):
            target, dims = w.value(name), range(len(w.value(x).global_shape))
            found = w.cast(write_one(w, x, dims, target.dtype), target.dtype)
            w.reshape(found, target.global_shape, name)

    return make(True) if additive else with_bodies(call, make, "apart", write)


def _foreach(names: str, rule: RuleFunction, *overloads: str) -> dict[str, RuleFunction]:
    return same([f"aten._foreach_{name}.{o}" for name in names.split() for o in overloads], rule)


SCALARS = ("Scalar", "ScalarList")

RULES: Table = {
    **_foreach(
        "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2"
        " reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero",
        each(),
        "default",
    ),
    **_foreach("clone neg", each("self"), "default"),
    **_foreach("copy", each("src"), "default"),
    **_foreach("add sub", each("self", "other"), "List"),
    **_foreach("add", each("self", "other"), "Tensor"),
    **_foreach("add sub", each(), *SCALARS),
    **_foreach("mul", each("self"), "List", "Tensor", *SCALARS),
    **_foreach("div", each("self"), "List", "Tensor", *SCALARS),
    **_foreach("clamp_max clamp_min maximum minimum pow", each(), "List", *SCALARS),
    **_foreach("pow", each(), "ScalarAndTensor"),
    **_foreach("lerp", each("self", "tensors1"), "List", *SCALARS),
    **_foreach("addcmul addcdiv", each("self", "tensor1"), "Tensor", *SCALARS),
    **_foreach("max", each_maximum, "default"),
    **_foreach("norm powsum", each_norm, "Scalar"),
}
