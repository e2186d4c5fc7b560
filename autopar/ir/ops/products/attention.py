"""Scaled dot-product attention: batch, heads and queries are split as they are.

A causal mask depends on where the queries begin, so there the body `masked` hands the fused op an
explicit one, each rank its rows. (`autopar.attention` is told instead where they begin.) Where keys
or the size of heads are split, the body `products` computes scores, their softmax and the weighted
sum one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.ir.expr.expression import Expr, IntExpr, exact_quotient, planned, shape_str
from autopar.ir.ops.body import BodyWriter, Write, accumulate_dtype, body
from autopar.ir.ops.table import RuleFunction, Table, dense_rows, operand_dims, pending
from autopar.ir.program import Arg, DType, Ref
from autopar.ir.rules.local_arg import Offset
from autopar.ir.rules.rule import SAME, Body, Dims, OpCall, Rule, RuleError, as_number, build_rule

INFINITY = float("inf")

FIRST = "first"
"""The argument that is the number of the first query: it sees keys of up to that number."""

LOWEST = {"f32": -(2 - 2**-23) * 2.0**127, "f64": -(2 - 2**-52) * 2.0**1023}
"""The lowest finite score of each dtype: what a row that is masked with -inf is shifted by. A row
that is masked with this number itself is still an average of all values."""


@dataclass(frozen=True)
class Heads:
    """The factors around an attention.

    Attributes:
        rows: Of the query's dimensions but the last: `*b (h r) l`.
        columns: Of the key's dimensions but the last: `*b h s`.
        sizes: Of those that occur only within compound dimensions.
    """

    rows: Dims
    columns: Dims
    sizes: Mapping[str, IntExpr]


def heads(
    query: Sequence[IntExpr], key: Sequence[IntExpr], value: Sequence[IntExpr], shared: bool
) -> Heads:
    """Returns the factors for these shapes; `shared` heads of the key serve several queries.

    Raises:
        RuleError: If the shapes are broadcast in any other way.
    """
    lead = tuple((f"b{at}",) for at in range(len(query) - 2))
    if len(query) < 2 or len(query) != len(key) or key[:-1] != value[:-1]:
        raise RuleError(f"attention of queries {shape_str(query)} to keys {shape_str(key)}")
    if tuple(query[:-2]) == tuple(key[:-2]):
        return Heads((*lead, ("l",)), (*lead, ("s",)), {})
    groups = key[-3] if len(key) > 2 else 0
    each = exact_quotient(query[-3], groups) if groups != 0 else None
    if not shared or query[:-3] != key[:-3] or each is None:
        raise RuleError(f"attention of queries {shape_str(query)} to keys {shape_str(key)}")
    return Heads(
        (*lead[:-1], ("h", "r"), ("l",)),
        (*lead[:-1], ("h",), ("s",)),
        {"h": groups, "r": each},
    )


def mask_dims(mask: Sequence[IntExpr], scores: Sequence[IntExpr], dims: Dims) -> Dims:
    """Returns the factors of a mask that broadcasts to scores with these.

    Raises:
        RuleError: If it has more dimensions.
    """
    skip = len(scores) - len(mask)
    if skip < 0:
        raise RuleError(f"a mask {shape_str(mask)} of scores {shape_str(scores)}")
    return tuple(dims[skip + at] if n == scores[skip + at] else () for at, n in enumerate(mask))


def attention(
    mask: str = "attn_mask", second: str = "logsumexp", *, told: bool = False
) -> RuleFunction:
    """Returns the rule function of attention: `query` [*b, l, e], `key` [*b, s, e], `value`.

    Args:
        mask: Name of the argument that is added to the scores.
        second: What the second result is, if there is one: the logarithm of the sum of
            exponentials, [*b, l], or the weights, [*b, l, s].
        told: Whether the op takes the number of its first query, as `first`.
    """

    def rule(call: OpCall) -> Rule | None:
        query, key, value = (operand.shape for operand in call.operands[:3])
        if call.args.get("dropout_p", 0.0) != 0.0:
            return None
        found = heads(query, key, value, _shares_heads(call))
        scores: Dims = (*found.rows, found.columns[-1])
        by_name: dict[str, Dims] = {
            "query": (*found.rows, ("e",)),
            "key": (*found.columns, ("e",)),
            "value": (*found.columns, ("d",)),
        }
        given = call.tensor(mask)
        if given is not None:
            by_name[mask] = mask_dims(given.shape, (*query[:-1], key[-2]), scores)
        also = found.rows if second == "logsumexp" else scores
        results: list[Dims] = [(*found.rows, ("d",)), also]
        width, depth = planned(query[-1]), planned(value[-1])

        def make(whole: Sequence[str]) -> Rule:
            return build_rule(
                call,
                operand_dims(call, by_name),
                results[: len(call.results)],
                sizes=found.sizes,
                whole=whole,
                reduce=_unread(whole),
                linear=(pending(2),) if len(call.results) == 1 else (),
                local={FIRST: Offset("l", base=first_of(call))} if told and causal else None,
                work=2 * (width + depth) / max(1, width * depth),
            )

        causal = call.flag("is_causal")
        own = make(("s", "e", "d", *(("l",) if causal and not told else ())))
        scaled = isinstance(query[-1], int) or isinstance(call.args.get("scale"), float)
        bodies: list[Body] = []
        # By default, scores are scaled by a number that an open size isn't.
        if scaled:
            bodies.append(body("products", make(()), _products(mask, second, found.sizes)))
        if causal and given is None and not told:
            bodies.insert(0, body("masked", make(("s", "e", "d")), masked(mask)))
        return replace(own, bodies=splitting_more(own, bodies))

    return rule


def first_of(call: OpCall) -> IntExpr:
    """Returns the number of an attention's first query, as keys are numbered: 0 of a whole one."""
    first = call.args.get(FIRST, 0)
    if isinstance(first, int | Expr):
        return first
    raise RuleError(f"{call.kind}: argument {FIRST} is {first!r}")


def _unread(whole: Sequence[str]) -> dict[str, str]:
    """Returns that partial sums over keys and head sizes are finished within the body."""
    return {name: SAME for name in ("s", "e", "d") if name not in whole}


def splitting_more(own: Rule, bodies: Sequence[Body]) -> tuple[Body, ...]:
    """Returns the bodies that split more factors than the op and the bodies before do."""
    kept: list[Body] = []
    known = set(own.splittable)
    for each in bodies:
        if known < set(each.rule.splittable):
            kept.append(each)
            known = set(each.rule.splittable)
    return tuple(kept)


def _shares_heads(call: OpCall) -> bool:
    """Whether heads of the key may be fewer: the public op must be told, kernels just do it."""
    return call.flag("enable_gqa", default=call.kind in (FLASH, ATTENTION))


def masked(mask: str = "attn_mask", *, backward: bool = False) -> Write:
    """Returns what writes the op with an explicit mask instead of a causal one.

    Args:
        mask: Name of the argument for it.
        backward: Whether the op is the gradient, which has to be told that it isn't causal.
    """

    def write(w: BodyWriter) -> None:
        query, key = (w.value(w.required(name)) for name in ("query", "key"))
        shape = (query.global_shape[-2], key.global_shape[-2])
        causal = causal_mask(w, shape, query.dtype)
        args = {name: arg for name, arg in w.op.args if name != "is_causal"}
        if backward:
            args["is_causal"] = False
        w.emit_all(w.op.kind, {**args, mask: Ref(causal)})

    return write


def causal_mask(w: BodyWriter, shape: Sequence[IntExpr], dtype: str, first: IntExpr = 0) -> str:
    """Adds what forbids a query [l] the keys [s] behind it, to be added to scores.

    The first query has the number `first`.
    """
    args: dict[str, Arg] = {
        "size": tuple(shape),
        "fill_value": -INFINITY,
        "dtype": DType(dtype),
    }
    forbidden = w.emit("aten.full.default", args, shape, dtype)
    return w.like("aten.triu.default", forbidden, diagonal=first + 1)


def _products(mask: str, second: str, sizes: Mapping[str, IntExpr]) -> Write:
    """Returns what writes scores, their softmax, and the weighted sum of the values."""

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        wide = accumulate_dtype(target.dtype)
        query, key, value = (w.cast(w.required(n), wide) for n in ("query", "key", "value"))
        scores = _scores(w, query, shared_heads(w, key, sizes), mask)
        last = len(w.value(scores).global_shape) - 1
        highest = w.highest(scores, (last,))
        top = w.like("aten.clamp_min.default", highest, min=LOWEST[wide])
        powers = w.like("aten.exp.default", w.combine("aten.sub.Tensor", scores, top))
        # A row without a key has a total of 0, and zeros as its weights.
        sums = w.reduce("aten.sum.dim_IntList", powers, (last,))
        total = w.like("aten.clamp_min.default", sums, min=1.0)
        values = shared_heads(w, value, sizes)
        if second == "weights" and len(w.op.results) > 1:
            weights = w.combine("aten.div.Tensor", powers, total)
            output = matmul(w, weights, values)
            w.cast(weights, w.value(w.op.results[1]).dtype, w.op.results[1])
        else:
            output = w.combine("aten.div.Tensor", matmul(w, powers, values), total)
            _write_logsumexp(w, total, top, sums)
        w.cast(output, target.dtype, target.name)

    return write


def _write_logsumexp(w: BodyWriter, total: str, top: str, sums: str) -> None:
    """Writes the second result: 0 for rows without a key, whose sum is 0 and not at least 1."""
    if len(w.op.results) > 1:
        target = w.value(w.op.results[1])
        kept = w.like("aten.clamp_max.default", sums, max=1.0)
        shift = w.combine("aten.mul.Tensor", top, kept)
        found = w.combine("aten.add.Tensor", w.like("aten.log.default", total), shift)
        w.reshape(w.cast(found, target.dtype), target.global_shape, target.name)


def _scores(w: BodyWriter, query: str, key: str, mask: str) -> str:
    """Adds the masked, scaled products of queries and keys."""
    scale = w.op.arg("scale")
    factor = scale if isinstance(scale, float) else _default_scale(w, query)
    scores = w.like("aten.mul.Scalar", matmul(w, query, transposed(w, key)), other=factor)
    if w.op.arg("is_causal", False):
        shape = w.value(scores).global_shape[-2:]
        first = w.op.arg(FIRST, 0)
        assert isinstance(first, int | Expr)
        causal = causal_mask(w, shape, w.value(scores).dtype, first)
        scores = w.combine("aten.add.Tensor", scores, causal)
    given = w.name(mask)
    if given is None:
        return scores
    if w.value(given).dtype != "bool":
        return w.combine("aten.add.Tensor", scores, w.cast(given, w.value(scores).dtype))
    args: dict[str, Arg] = {"condition": Ref(given), "self": Ref(scores), "other": -INFINITY}
    value = w.value(scores)
    return w.emit("aten.where.ScalarOther", args, value.global_shape, value.dtype)


def _default_scale(w: BodyWriter, query: str) -> float:
    return float(max(1, as_number(w.value(query).global_shape[-1])) ** -0.5)


def matmul(w: BodyWriter, left: str, right: str) -> str:
    """Adds the product of [*b, m, k] and [*b, k, n]."""
    shape = (*w.value(left).global_shape[:-1], w.value(right).global_shape[-1])
    args: dict[str, Arg] = {"self": Ref(left), "other": Ref(right)}
    return w.emit("aten.matmul.default", args, shape, w.value(left).dtype)


def transposed(w: BodyWriter, x: str) -> str:
    """Adds [*b, n, m] for [*b, m, n]."""
    value = w.value(x)
    *lead, rows, columns = value.global_shape
    args: dict[str, Arg] = {"self": Ref(x), "dim0": -2, "dim1": -1}
    return w.emit("aten.transpose.int", args, (*lead, columns, rows), value.dtype)


def shared_heads(w: BodyWriter, x: str, sizes: Mapping[str, IntExpr]) -> str:
    """Adds [*b, h r, s, e] for [*b, h, s, e], each head repeated, if heads are shared."""
    if not sizes:
        return x
    value = w.value(x)
    *lead, count, rows, columns = value.global_shape
    single = w.reshape(x, (*lead, count, 1, rows, columns))
    wide = (*lead, count, sizes["r"], rows, columns)
    args: dict[str, Arg] = {"self": Ref(single), "size": wide}
    repeated = w.emit("aten.expand.default", args, wide, value.dtype)
    return w.reshape(repeated, (*lead, count * sizes["r"], rows, columns))


FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
"""Attention on the CPU, and sums of exponentials for its gradient."""

ATTENTION = "autopar.attention"
"""The same on any device. It returns what the CPU's own op does, and takes `first` besides."""

RULES: Table = {
    "aten.scaled_dot_product_attention.default": attention(),
    "aten._scaled_dot_product_attention_math.default": attention(second="weights"),
    FLASH: dense_rows(attention()),
    ATTENTION: dense_rows(attention(told=True)),
}
