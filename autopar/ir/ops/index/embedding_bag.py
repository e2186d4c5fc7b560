"""Bags of an embedding: sums, means or maxima of rows of a table, and their gradients.

`offsets` say where each bag begins, so bags can't be split. The table can: a shard of its rows
adds those that it has.
"""

from __future__ import annotations

from autopar.ir.ops.table import FIRST, RuleFunction, Table, dense, factors, operand_dims
from autopar.ir.rules.local_arg import Size
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, Shard, build_rule

MAX = 2
"""The `mode` of maxima; the others are sums and means."""


def embedding_bag(call: OpCall) -> Rule | None:
    """aten._embedding_bag: the bags, the bag of each index, sizes of bags and places of maxima."""
    maxima = call.integer("mode", 0) == MAX
    shard = Shard("autopar.embedding_bag", {"extent": call.operands[0].shape[0]})
    return _embedding_bag(call, None if maxima else shard)


def embedding_bag_forward(call: OpCall) -> Rule | None:
    """aten._embedding_bag_forward_only, whose counts have shapes of their own."""
    return _embedding_bag(call, None)


def _embedding_bag(call: OpCall, shard: Shard | None) -> Rule:
    index: Dims = (("n",),)
    by_name: dict[str, Dims] = {
        "weight": (("v",), ("e",)),
        "indices": index,
        "offsets": (("o",),),
        "per_sample_weights": index,
    }
    results: list[Dims] = [(("b",), ("e",))]
    for at, result in enumerate(call.results[1:], 1):
        dims = factors(f"r{at}_", len(result.shape))
        results.append((*dims[:-1], ("e",)) if len(dims) == 2 else dims)
    counts = [name for dims in results[1:] for (name,) in dims if name != "e"]
    others = {(name, at): SAME for name in "ve" for at in range(1, len(results))}
    return build_rule(
        call,
        operand_dims(call, by_name),
        results,
        reduce={**others, ("v", 0): "sum"},
        indexed={"v": shard} if shard else None,
        whole=["n", "o", "b", *counts, *(() if shard else ("v",))],
        work=0,
    )


def embedding_bag_backward(own: str) -> RuleFunction:
    """Returns the rule function of the gradient of the table.

    Indices may be split if they come with the bag of each. A maximum's row is known without them,
    so there the bags may be split.

    Args:
        own: The op that computes a shard of the table's rows.
    """

    def rule(call: OpCall) -> Rule | None:
        index, placed = call.tensor("indices"), call.tensor("offset2bag")
        counts, places = call.tensor("bag_size"), call.tensor("maximum_indices")
        if not (index and placed and counts and places) or call.flag("sparse"):
            return None
        maxima = call.integer("mode", 0) == MAX
        alone = not call.flag("scale_grad_by_freq")
        by_index = alone and not maxima and placed.shape == index.shape
        by_bag = maxima and counts.shape == call.operands[0].shape[:1]
        by_name: dict[str, Dims] = {
            "grad": (("b",), ("e",)),
            "indices": (("n",),),
            "offsets": (("o",),),
            "offset2bag": (("n",) if by_index else ("p",),),
            "bag_size": (("b",) if by_bag else ("s",),),
            "maximum_indices": (("b",), ("e",)) if by_bag else (("m",),),
            "per_sample_weights": (("n",),),
        }
        whole = ["o", "p", "s", "m", *(() if by_index else ("n",)), *(() if by_bag else ("b",))]
        return build_rule(
            call,
            operand_dims(call, by_name),
            [(("v",), ("e",))],
            reduce={"n": "sum", "b": "sum"},
            indexed={"v": own} if alone else None,
            whole=[*whole, *(() if alone else ("v",))],
            local={"num_weights": Size(("v",))},
            linear=FIRST,
            work=0,
        )

    return rule


def weights_backward(call: OpCall) -> Rule | None:
    """aten._embedding_bag_per_sample_weights_backward: products of gradients and rows."""
    index, placed = call.tensor("indices"), call.tensor("offset2bag")
    if index is None or placed is None:
        return None
    known = placed.shape == index.shape
    by_name: dict[str, Dims] = {
        "grad": (("b",), ("e",)),
        "weight": (("v",), ("e",)),
        "indices": (("n",),),
        "offsets": (("o",),),
        "offset2bag": (("n",) if known else ("p",),),
    }
    return build_rule(
        call,
        operand_dims(call, by_name),
        [(("n",),)],
        reduce={"e": "sum", "v": "sum"},
        indexed={"v": "autopar.embedding_bag_weights_backward"},
        whole=["b", "o", "p", *(() if known else ("n",))],
        linear=FIRST,
        work=0,
    )


RULES: Table = {
    "aten._embedding_bag.default": dense(embedding_bag),
    "aten._embedding_bag_forward_only.default": dense(embedding_bag_forward),
    "aten._embedding_bag_backward.default": dense(
        embedding_bag_backward("autopar.embedding_bag_backward")
    ),
    "aten._embedding_bag_dense_backward.default": dense(
        embedding_bag_backward("autopar.embedding_bag_dense_backward")
    ),
    "aten._embedding_bag_per_sample_weights_backward.default": dense(weights_backward),
}
