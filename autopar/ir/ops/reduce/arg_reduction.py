"""Reductions whose results are indices.

A kernel that finds an index can't be split along the dimension it searches. The bodies find the
extremum first, which may be pending, and then the least index of an element that equals it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.ir.dtypes import FLOATS
from autopar.ir.expr.expression import prod
from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.reduce.reduction import DimsOf, last_dim, only_listed_dims, reduced
from autopar.ir.ops.table import RuleFunction, Table
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.rule import SAME, OpCall, Rule, build_rule


def searching(dims_of: DimsOf, extremum: str) -> RuleFunction:
    """Returns the rule function of an op whose last result is the index of the first extremum.

    Args:
        dims_of: The dimensions that are searched, as one.
        extremum: The op that finds the extremum, which may be the first of two results.
    """

    def rule(call: OpCall) -> Rule | None:
        gone = sorted(dims_of(call))
        operand, result = reduced(call, gone)
        names = [f"i{at}" for at in gone]
        results = [result] * len(call.results)

        def make(split: bool) -> Rule:
            reduce = {(name, at): SAME for name in names for at in range(len(results))}
            whole = () if split else names
            return build_rule(call, [operand], results, reduce=reduce, whole=whole, work=2)

        def write(w: BodyWriter) -> None:
            targets = [w.value(name) for name in w.op.results]
            x = w.required("self")
            peak = w.reduce(extremum, x, gone)
            found = _write_index(w, x, peak, gone)
            w.reshape(found, targets[-1].global_shape, targets[-1].name)
            for target in targets[:-1]:
                w.reshape(peak, target.global_shape, target.name)

        # The index of nothing is an error, which the op itself reports best.
        return with_bodies(make, "first", write) if call.operands[0].shape else make(False)

    return rule


def _write_index(w: BodyWriter, x: str, peak: str, dims: Sequence[int]) -> str:
    """Writes the least index along `dims` at which `x` is `peak`, or is no number as `peak` is."""
    value = w.value(x)
    shape = value.global_shape
    args: dict[str, Arg] = {"self": Ref(x), "other": Ref(peak)}
    hit = w.emit("aten.eq.Tensor", args, shape, "bool")
    if value.dtype in FLOATS:
        missing = w.emit("aten.isnan.default", {"self": Ref(x)}, shape, "bool")
        hit = w.combine("aten.logical_or.default", hit, missing)
    index = w.indices(shape, dims)
    picked: dict[str, Arg] = {
        "condition": Ref(hit),
        "self": Ref(index),
        "other": prod(shape[at] for at in dims),
    }
    candidates = w.emit("aten.where.ScalarOther", picked, shape, "i64")
    return w.reduce("aten.amin.default", candidates, dims)


WITH_EXTREMA: Mapping[str, str] = {
    "aten.argmax.default": "aten.max.dim",
    "aten.argmin.default": "aten.min.dim",
    "aten.max.dim": "aten.max.dim",
    "aten.min.dim": "aten.min.dim",
}
"""Searches along one dimension, and what finds the extremum and its index, with the same arguments.

Of equal elements the first is found, and what is no number before all others."""

RULES: Table = {
    "aten.argmax.default": searching(only_listed_dims, "aten.amax.default"),
    "aten.argmin.default": searching(only_listed_dims, "aten.amin.default"),
    "aten.max.dim": searching(last_dim, "aten.amax.default"),
    "aten.min.dim": searching(last_dim, "aten.amin.default"),
}
