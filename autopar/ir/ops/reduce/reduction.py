"""Reductions over dimensions, and ops that go along dimensions that can't be split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from autopar.ir.dtypes import COMPLEX
from autopar.ir.expr.expression import IntExpr, add, planned, prod
from autopar.ir.expr.facts import larger
from autopar.ir.ops.body import BodyWriter, accumulate_dtype, with_bodies
from autopar.ir.ops.table import (
    COMPARISON,
    FIRST,
    RuleFunction,
    Table,
    axes,
    axis,
    factors,
    pending,
    same,
)
from autopar.ir.program import Arg, Ref
from autopar.ir.rules.rule import SAME, Dims, Linear, OpCall, Rule, RuleError, build_rule

FLAG = 16
"""Operations per truth value, which kernels take one by one."""

DimsOf = Callable[[OpCall], Collection[int]]
"""The dimensions of the first operand that an op goes along."""


def all_dims(call: OpCall) -> Collection[int]:
    """Returns every dimension."""
    return range(len(call.operands[0].shape))


def listed_dims(call: OpCall) -> Collection[int]:
    """Returns the dimensions in `dim`, an integer or a list; all if it is None or empty."""
    rank = len(call.operands[0].shape)
    return axes(call, rank) or range(rank)


def only_listed_dims(call: OpCall) -> Collection[int]:
    """Returns the dimensions in `dim`; all if it is None, none if it is empty."""
    rank = len(call.operands[0].shape)
    return range(rank) if call.args.get("dim") is None else axes(call, rank)


def last_dim(call: OpCall) -> Collection[int]:
    """Returns the dimension `dim`, by default the last; a scalar has none."""
    rank = len(call.operands[0].shape)
    return (axis(call, rank, default=-1),) if rank else ()


def first_dim(call: OpCall) -> Collection[int]:
    """Returns the dimension `dim`, by default the first; a scalar has none."""
    rank = len(call.operands[0].shape)
    return (axis(call, rank),) if rank else ()


def reduced(call: OpCall, gone: Collection[int]) -> tuple[Dims, Dims]:
    """Returns the factors of an operand, and of results without the dimensions in `gone`.

    Raises:
        RuleError: If a result's rank fits neither with nor without these dimensions.
    """
    rank, result_rank = len(call.operands[0].shape), len(call.results[0].shape)
    operand = tuple((f"i{at}",) for at in range(rank))
    if result_rank == rank:
        return operand, tuple(() if at in gone else dim for at, dim in enumerate(operand))
    if result_rank != rank - len(gone):
        raise RuleError(f"{call.kind}: a result of {result_rank} dimensions from {rank}")
    return operand, tuple(dim for at, dim in enumerate(operand) if at not in gone)


def reduction(
    dims_of: DimsOf, monoid: str, linear: Sequence[Linear] = (), work: float = 1
) -> RuleFunction:
    """Returns the rule function of a reduction by a monoid over the dimensions `dims_of`."""

    def rule(call: OpCall) -> Rule | None:
        gone = dims_of(call)
        operand, result = reduced(call, gone)
        reduce = {f"i{at}": monoid for at in gone}
        return build_rule(call, [operand], [result], reduce=reduce, linear=linear, work=work)

    return rule


def reduced_whole(dims_of: DimsOf, work: float = 1) -> RuleFunction:
    """Returns the rule function of a reduction whose dimensions must not be split."""

    def rule(call: OpCall) -> Rule | None:
        gone = dims_of(call)
        operand, result = reduced(call, gone)
        results = [result] * len(call.results)
        whole = [f"i{at}" for at in gone]
        return build_rule(call, [operand], results, whole=whole, work=work)

    return rule


def extrema(call: OpCall) -> Rule | None:
    """aten.aminmax: least and greatest elements."""
    gone = listed_dims(call)
    operand, result = reduced(call, gone)
    monoids = {(f"i{at}", n): name for at in gone for n, name in enumerate(("min", "max"))}
    return build_rule(call, [operand], [result, result], reduce=monoids)


def mean(dims_of: DimsOf) -> RuleFunction:
    """Returns the rule function of a mean. Its body divides a sum, which may be split."""

    def rule(call: OpCall) -> Rule | None:
        gone = dims_of(call)
        operand, result = reduced(call, gone)
        names = [f"i{at}" for at in gone]
        count = prod(call.operands[0].shape[at] for at in gone)

        def make(split: bool) -> Rule:
            reduce = dict.fromkeys(names, "sum") if split else None
            whole = () if split else names
            return build_rule(call, [operand], [result], reduce=reduce, whole=whole, linear=FIRST)

        def write(w: BodyWriter) -> None:
            target = w.value(w.op.results[0])
            # Half precision overflows in a sum where it doesn't in a mean.
            x = w.cast(w.required("self"), accumulate_dtype(target.dtype))
            args: dict[str, Arg] = {"self": Ref(x), "dim": tuple(sorted(gone))}
            args["keepdim"] = len(result) == len(operand)
            wide = accumulate_dtype(target.dtype)
            total = w.emit("aten.sum.dim_IntList", args, target.global_shape, wide)
            if wide == target.dtype:
                w.like("aten.div.Scalar", total, target.name, other=count)
            else:
                w.cast(w.like("aten.div.Scalar", total, other=count), target.dtype, target.name)

        return with_bodies(make, "sum", write)

    return rule


def _correction(call: OpCall) -> float:
    if "correction" in call.args and isinstance(call.args["correction"], (int, float)):
        return float(call.args["correction"])
    return 1.0 if call.flag("unbiased", True) else 0.0


def _degrees_of_freedom(count: IntExpr, correction: float) -> float | IntExpr | None:
    """Returns by what a sum of squares is divided; None if no expression says that."""
    if isinstance(count, int):
        return max(0.0, count - correction)
    return larger(0, add(count, -int(correction))) if correction.is_integer() else None


def variance(call: OpCall) -> Rule | None:
    """aten.var, std, and both with the mean. The body sums squared deviations."""
    gone = only_listed_dims(call) or all_dims(call)
    operand, result = reduced(call, gone)
    names = [f"i{at}" for at in gone]
    count = prod(call.operands[0].shape[at] for at in gone)
    free = _degrees_of_freedom(count, _correction(call))

    def make(split: bool) -> Rule:
        # The mean must be complete before deviations from it are taken; so nothing stays pending
        # but the variance itself, and not the standard deviation.
        results = [result] * len(call.results)
        reduce = {(name, at): SAME for name in names for at in range(len(results))}
        return build_rule(
            call,
            [operand],
            results,
            reduce=reduce,
            whole=() if split else names,
            # By itself, the op divides for each element, as Welford does.
            work=4 if split else 40,
        )

    def write(w: BodyWriter) -> None:
        own, dims = w.op.results, tuple(sorted(gone))
        x = w.cast(w.required("self"), accumulate_dtype(w.value(own[0]).dtype))
        average = w.like("aten.div.Scalar", w.reduce("aten.sum.dim_IntList", x, dims), other=count)
        centered = w.combine("aten.sub.Tensor", x, average)
        squared = w.combine("aten.mul.Tensor", centered, centered)
        total = w.reduce("aten.sum.dim_IntList", squared, dims)
        spread = w.like("aten.div.Scalar", total, other=free)
        if ".std" in call.kind:
            spread = w.like("aten.sqrt.default", spread)
        for found, name in zip((spread, average), own, strict=False):
            target = w.value(name)
            w.reshape(w.cast(found, target.dtype), target.global_shape, name)

    if free in (None, 0) or call.operands[0].dtype in COMPLEX:
        return make(False)
    return with_bodies(make, "moments", write)


def logsumexp(call: OpCall) -> Rule | None:
    """aten.logsumexp; the body shifts by the maximum."""
    gone = listed_dims(call)
    operand, result = reduced(call, gone)
    names = [f"i{at}" for at in gone]

    def make(split: bool) -> Rule:
        reduce = dict.fromkeys(names, SAME) if split else None
        whole = () if split else names
        return build_rule(call, [operand], [result], reduce=reduce, whole=whole, work=4)

    def write(w: BodyWriter) -> None:
        target, dims = w.value(w.op.results[0]), tuple(sorted(gone))
        x = w.cast(w.required("self"), target.dtype)
        peak = w.highest(x, dims)
        # An infinite maximum must not be subtracted from itself.
        infinite = w.emit(
            "aten.isinf.default", {"self": Ref(peak)}, w.value(peak).global_shape, "bool"
        )
        shift = w.like("aten.masked_fill.Scalar", peak, mask=Ref(infinite), value=0)
        powers = w.like("aten.exp.default", w.combine("aten.sub.Tensor", x, shift))
        total = w.like("aten.log.default", w.reduce("aten.sum.dim_IntList", powers, dims))
        w.reshape(w.combine("aten.add.Tensor", total, shift), target.global_shape, target.name)

    # Complex numbers have no maximum.
    if call.operands[0].dtype in COMPLEX:
        return make(False)
    return with_bodies(make, "shifted", write)


def along(dims_of: DimsOf, linear: Sequence[Linear] = (), work: float = 1) -> RuleFunction:
    """Returns the rule function of an op that goes along dimensions, and maps all others alike.

    The dimensions that it goes along must not be split; their size may change. All results have
    the rank of the one operand. The work is that per element of the larger of operand and result.
    """

    def rule(call: OpCall) -> Rule | None:
        operand, results, whole = kept(call, dims_of(call))
        # A dimension whose size changes has two factors, which span all pairs of their indexes.
        pairs = zip(
            operand, results[0], call.operands[0].shape, call.results[0].shape, strict=False
        )
        aside = [(old if planned(m) < planned(n) else new)[0] for old, new, m, n in pairs if m != n]
        return build_rule(
            call, [operand], results, whole=whole, linear=linear, work=work, aside=aside
        )

    return rule


def kept(call: OpCall, gone: Collection[int]) -> tuple[Dims, list[Dims], list[str]]:
    """Returns the factors of one operand and results of its rank, and which must not be split.

    Dimensions in `gone` may change their size, to the same one in all results; others must not.
    """
    shape, changed = call.operands[0].shape, call.results[0].shape
    operand = factors("i", len(shape))
    result = tuple(
        dim if shape[at] == changed[at] else (f"r{at}",) for at, dim in enumerate(operand)
    )
    whole = [name for at in gone for name in (*operand[at], *result[at])]
    return operand, [result] * len(call.results), whole


_WITH_MEAN = ("var_mean", "std_mean")

MAX, MIN = ((pending(0, monoids=(monoid,)),) for monoid in ("max", "min"))
PROD, ANY, ALL = ((pending(0, monoids=(monoid,)),) for monoid in ("prod", "any", "all"))

RULES: Table = {
    "aten.sum.default": reduction(all_dims, "sum", FIRST),
    "aten.sum.dim_IntList": reduction(listed_dims, "sum", FIRST),
    "aten.nansum.default": reduction(listed_dims, "sum"),
    "aten.count_nonzero.default": reduction(listed_dims, "sum"),
    "aten.count_nonzero.dim_IntList": reduction(listed_dims, "sum"),
    "aten.prod.default": reduction(all_dims, "prod", PROD),
    "aten.prod.dim_int": reduction(first_dim, "prod", PROD),
    "aten.amax.default": reduction(listed_dims, "max", MAX),
    "aten.amin.default": reduction(listed_dims, "min", MIN),
    "aten.max.default": reduction(all_dims, "max", MAX),
    "aten.min.default": reduction(all_dims, "min", MIN),
    "aten.any.default": reduction(all_dims, "any", ANY, FLAG),
    "aten.any.dim": reduction(first_dim, "any", ANY, FLAG),
    "aten.any.dims": reduction(only_listed_dims, "any", ANY, FLAG),
    "aten.all.default": reduction(all_dims, "all", ALL, FLAG),
    "aten.all.dim": reduction(first_dim, "all", ALL, FLAG),
    "aten.all.dims": reduction(only_listed_dims, "all", ALL, FLAG),
    "aten.mean.default": mean(all_dims),
    "aten.mean.dim": mean(listed_dims),
    **same([f"aten.{name}.correction" for name in ("var", "std", *_WITH_MEAN)], variance),
    **same([f"aten.{name}.dim" for name in ("var", "std", *_WITH_MEAN)], variance),
    "aten.logsumexp.default": logsumexp,
    **same(
        [
            "aten.median.dim",
            "aten.nanmedian.dim",
            "aten.kthvalue.default",
        ],
        reduced_whole(last_dim, work=2 * COMPARISON),
    ),
    # A row is sorted first.
    "aten.mode.default": reduced_whole(last_dim, work=10 * COMPARISON),
    **same(
        ["aten.median.default", "aten.nanmedian.default"],
        reduced_whole(all_dims, work=2 * COMPARISON),
    ),
    "aten.hash_tensor.default": reduced_whole(listed_dims),
    "aten.aminmax.default": extrema,
    "aten._is_all_true.default": reduction(all_dims, "all", ALL, FLAG),
    "aten._is_any_true.default": reduction(all_dims, "any", ANY, FLAG),
    "aten.cumsum.default": along(first_dim, FIRST),
    **same(
        [
            "aten.cumprod.default",
            "aten.cummax.default",
            "aten.cummin.default",
        ],
        along(first_dim),
    ),
    # Each sum waits for the one before, with an exponential and a logarithm in between.
    "aten.logcumsumexp.default": along(first_dim, work=3 * COMPARISON),
}
