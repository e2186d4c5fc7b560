"""Gradients of attention.

With the forward pass's output and logarithms of sums at hand, every pair of a query and a key is
independent: splitting queries leaves the gradients of keys and values pending, and the other way
round.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.ops.body import body
from autopar.ir.ops.products.attention import (
    FIRST,
    first_of,
    heads,
    mask_dims,
    masked,
    splitting_more,
)
from autopar.ir.ops.table import Table, dense_rows, operand_dims, pending
from autopar.ir.rules.local_arg import Offset
from autopar.ir.rules.rule import Dims, OpCall, Rule, build_rule


def attention_backward(call: OpCall) -> Rule | None:
    """Gradients of query, key and value. A causal mask is made explicit where it is split.

    An op of our own is told instead how many keys are before the first query.
    """
    told = call.kind == ATTENTION_BACKWARD
    query, key, value = (operand.shape for operand in call.operands[1:4])
    if call.args.get("dropout_p", 0.0) != 0.0 or query[-1] != value[-1]:
        return None
    found = heads(query, key, value, shared=True)
    rows: Dims = (*found.rows, ("e",))
    columns: Dims = (*found.columns, ("e",))
    by_name: dict[str, Dims] = {
        **dict.fromkeys(("grad_out", "query", "out"), rows),
        **dict.fromkeys(("key", "value"), columns),
        "logsumexp": found.rows,
    }
    mask = call.tensor("attn_mask")
    if mask is not None:
        scores: Dims = (*found.rows, found.columns[-1])
        by_name["attn_mask"] = mask_dims(mask.shape, (*query[:-1], key[-2]), scores)

    def make(*whole: str) -> Rule:
        return build_rule(
            call,
            operand_dims(call, by_name),
            [rows, columns, columns],
            sizes=found.sizes,
            whole=("e", *whole),
            reduce={"l": "sum", "s": "sum", "r": "sum"},
            linear=(pending(0),),
            local={FIRST: Offset("l", base=first_of(call), minus="s")} if told and causal else None,
            work=10,
        )

    causal = call.flag("is_causal")
    if told or not causal:
        return make()
    own = make("l", "s")
    bodies = [body("masked", make(), masked(backward=True))] if mask is None else []
    return replace(own, bodies=splitting_more(own, bodies))


FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
"""The gradients of attention on the CPU."""

ATTENTION_BACKWARD = "autopar.attention_backward"
"""The same on any device, of what `autopar.attention` computed."""

RULES: Table = {
    FLASH_BACKWARD: dense_rows(attention_backward),
    ATTENTION_BACKWARD: dense_rows(attention_backward),
}
