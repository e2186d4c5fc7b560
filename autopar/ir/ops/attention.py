"""Scaled dot-product attention. Keys must not be split, nor queries under a causal mask."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.ops.table import Table, operand_dims, pending
from autopar.ir.rule import Dims, OpCall, Rule, RuleError, build_rule


def _heads(query: Sequence[int], key: Sequence[int]) -> tuple[Dims, Dims, dict[str, int]]:
    """Returns the factors of the leading dimensions of query and key, and sizes among them.

    Several query heads may share a head of the keys: `(h r)` and `h`.
    """
    lead = tuple((f"b{at}",) for at in range(len(query) - 2))
    if tuple(query[:-2]) == tuple(key[:-2]):
        return lead, lead, {}
    shared = len(query) > 2 and tuple(query[:-3]) == tuple(key[:-3])
    if not shared or key[-3] == 0 or query[-3] % key[-3]:
        raise RuleError(f"attention of queries {list(query)} to keys {list(key)}")
    repeats = query[-3] // key[-3]
    return (*lead[:-1], ("h", "r")), (*lead[:-1], ("h",)), {"h": key[-3], "r": repeats}


def _mask(shape: Sequence[int], full: Dims, sizes: Sequence[int]) -> Dims:
    skip = len(full) - len(shape)
    return tuple(
        full[skip + at] if size == sizes[skip + at] else () for at, size in enumerate(shape)
    )


def attention(call: OpCall) -> Rule | None:
    """Attention of `query` [*b, l, e] to `key` [*b, s, e], `value` [*b, s, d] under `attn_mask`.

    A second result is the logarithm of the sum of exponentials, [*b, l].
    """
    query, key, value = (operand.shape for operand in call.operands[:3])
    if call.args.get("dropout_p", 0.0) != 0.0 or len(query) != len(key) or len(key) < 2:
        return None
    if key[:-1] != value[:-1]:
        return None
    lead, shared, sizes = _heads(query, key)
    if sizes and not call.flag("enable_gqa"):
        return None
    by_name: dict[str, Dims] = {
        "query": (*lead, ("l",), ("e",)),
        "key": (*shared, ("s",), ("e",)),
        "value": (*shared, ("s",), ("d",)),
    }
    mask = call.tensor("attn_mask")
    if mask is not None:
        scores = (*query[:-1], key[-2])
        if len(mask.shape) > len(scores):
            return None
        by_name["attn_mask"] = _mask(mask.shape, (*lead, ("l",), ("s",)), scores)
    output: Dims = (*lead, ("l",), ("d",))
    results = [output, (*lead, ("l",))][: len(call.results)]
    causal = call.flag("is_causal")
    return build_rule(
        call,
        operand_dims(call, by_name),
        results,
        sizes=sizes,
        whole=("s", "e", "d", *(("l",) if causal else ())),
        linear=(pending(2),) if len(results) == 1 else (),
        work=2 * (query[-1] + value[-1]) / max(1, query[-1] * value[-1]),
    )


def attention_backward(call: OpCall) -> Rule | None:
    """Gradients of query, key and value: only batch and heads are independent."""
    query, key = call.operands[1].shape, call.operands[2].shape
    if call.args.get("dropout_p", 0.0) != 0.0 or query[:-2] != key[:-2]:
        return None
    lead = tuple((f"b{at}",) for at in range(len(query) - 2))
    rows: Dims = (*lead, ("l",), ("e",))
    columns: Dims = (*lead, ("s",), ("e",))
    by_name: dict[str, Dims] = {
        **dict.fromkeys(("grad_out", "query", "out"), rows),
        **dict.fromkeys(("key", "value"), columns),
        "logsumexp": (*lead, ("l",)),
    }
    mask = call.tensor("attn_mask")
    if mask is not None:
        scores = (*query[:-1], key[-2])
        by_name["attn_mask"] = _mask(mask.shape, (*lead, ("l",), ("s",)), scores)
    return build_rule(
        call,
        operand_dims(call, by_name),
        [rows, columns, columns],
        whole=("l", "s", "e"),
        linear=(pending(0),),
        work=10,
    )


RULES: Table = {
    "aten.scaled_dot_product_attention.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
}
