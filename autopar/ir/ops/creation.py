"""Ops that create tensors: sizes, and where a range starts, depend on the shard."""

from __future__ import annotations

from autopar.ir.ops.pointwise import pointwise
from autopar.ir.ops.table import RuleFunction, Table, factors, row, same
from autopar.ir.rule import SAME, Dims, Offset, OpCall, Rule, Sizes, build_rule


def constant(size: str = "size") -> RuleFunction:
    """Returns the rule function of an op that fills a tensor, whose shape is an argument.

    The content of an operand, as that of aten.new_full, isn't read.
    """

    def rule(call: OpCall) -> Rule | None:
        dims = factors("i", len(call.results[0].shape))
        unread: list[Dims] = [
            factors(f"o{at}_", len(operand.shape)) for at, operand in enumerate(call.operands)
        ]
        return build_rule(
            call,
            unread,
            [dims],
            reduce={dim[0]: SAME for operand in unread for dim in operand},
            local={size: Sizes(dims)},
            work=0,
        )

    return rule


def arange(call: OpCall) -> Rule | None:
    """aten.arange.start and start_step: a shard of an integer range starts elsewhere."""
    start, step = call.args.get("start", 0), call.args.get("step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        return whole(call)
    local = {
        "start": Offset("i0", base=start, scale=step),
        "end": Offset("i0", base=start, scale=step, end=True),
    }
    return build_rule(call, [], [factors("i", 1)], local=local, work=0)


def whole(call: OpCall) -> Rule | None:
    """Returns the rule of a small constant that every process computes by itself."""
    dims = [factors(f"r{at}_", len(result.shape)) for at, result in enumerate(call.results)]
    names = [dim[0] for result in dims for dim in result]
    return build_rule(call, [], dims, whole=names, work=0)


RULES: Table = {
    **same(
        [
            "aten.full.default",
            "aten.zeros.default",
            "aten.ones.default",
            "aten.empty.memory_format",
            "aten.new_full.default",
            "aten.new_zeros.default",
            "aten.new_ones.default",
            "aten.new_empty.default",
        ],
        constant(),
    ),
    **same(
        [
            "aten.full_like.default",
            "aten.zeros_like.default",
            "aten.ones_like.default",
            "aten.empty_like.default",
        ],
        pointwise(work=0),
    ),
    **same(["aten.arange.start", "aten.arange.start_step"], arange),
    "aten.arange.default": whole,
    "aten.scalar_tensor.default": row(" -> *i"),
    **same(
        [
            "aten.eye.default",
            "aten.eye.m",
            "aten.linspace.default",
            "aten.logspace.default",
            "aten.tril_indices.default",
            "aten.triu_indices.default",
            "aten.hann_window.default",
            "aten.hamming_window.default",
            "aten.blackman_window.default",
        ],
        whole,
    ),
}
