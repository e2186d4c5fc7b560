"""Ops that create tensors: sizes, and where a range starts, depend on the shard."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.expr.expression import Expr
from autopar.ir.ops.body import BodyWriter, with_bodies
from autopar.ir.ops.elementwise.pointwise import pointwise
from autopar.ir.ops.table import Again, Table, factors, row, same, whole
from autopar.ir.program import Arg, DType
from autopar.ir.rules.local_arg import Offset, Sizes
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule


def constant(call: OpCall) -> Rule | None:
    """Fills a tensor, whose shape is an argument.

    The content of an operand, as that of aten.new_full, isn't read.
    """
    dims = factors("i", len(call.results[0].shape))
    unread: list[Dims] = [
        factors(f"o{at}_", len(operand.shape)) for at, operand in enumerate(call.operands)
    ]
    return build_rule(
        call,
        unread,
        [dims],
        reduce={dim[0]: SAME for operand in unread for dim in operand},
        local={"size": Sizes(dims)},
        work=0,
    )


def arange(call: OpCall) -> Rule | None:
    """aten.arange.start and start_step: a shard of an integer range starts elsewhere."""
    start, step = call.args.get("start", 0), call.args.get("step", 1)
    if not isinstance(start, (int, Expr)) or not isinstance(step, (int, Expr)):
        return whole(call)
    local = {
        "start": Offset("i0", base=start, scale=step),
        "end": Offset("i0", base=start, scale=step, end=True),
    }
    return build_rule(call, [], [factors("i", 1)], local=local, work=0)


def arange_to(call: OpCall) -> Rule | None:
    """aten.arange, from 0 to `end`. Its body is a range whose start is an argument."""

    def make(split: bool) -> Rule:
        dims = factors("i", 1)
        return build_rule(call, [], [dims], whole=() if split else ("i0",), work=0)

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        args: dict[str, Arg] = {"start": 0, "end": w.op.arg("end"), "dtype": DType(target.dtype)}
        w.emit("aten.arange.start", args, target.global_shape, target.dtype, target.name)

    if not isinstance(call.args.get("end"), (int, Expr)):
        return whole(call)
    return with_bodies(make, "start", write)


def eye(call: OpCall) -> Rule | None:
    """aten.eye. Its body keeps the diagonal of a matrix of ones."""

    def make(split: bool) -> Rule:
        dims = factors("i", 2)
        return build_rule(call, [], [dims], whole=() if split else ("i0", "i1"), work=0)

    def write(w: BodyWriter) -> None:
        target = w.value(w.op.results[0])
        args: dict[str, Arg] = {"size": target.global_shape, "fill_value": 1}
        args["dtype"] = DType(target.dtype)
        ones = w.emit("aten.full.default", args, target.global_shape, target.dtype)
        w.like("aten.tril.default", w.like("aten.triu.default", ones), target.name)

    return with_bodies(make, "triangles", write)


WINDOWS = ("bartlett", "blackman", "hamming", "hann", "kaiser")

_LIKE = tuple(f"aten.{name}_like.default" for name in ("full", "zeros", "ones", "empty"))
OF_A_SHAPE = frozenset(_LIKE)
"""Ops that read no element of their operand."""

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
        constant,
    ),
    **same(_LIKE, pointwise(work=0)),
    **same(["aten.arange.start", "aten.arange.start_step"], arange),
    "aten.arange.default": arange_to,
    **same(["aten.eye.default", "aten.eye.m"], eye),
    "aten.scalar_tensor.default": row(" -> *i"),
    **same(
        [
            "aten.linspace.default",
            "aten.logspace.default",
            "aten.tril_indices.default",
            "aten.triu_indices.default",
            *(
                f"aten.{name}space.{start}_{end}"
                for name in ("lin", "log")
                for start, end in (("Tensor", "Tensor"), ("Tensor", "Scalar"), ("Scalar", "Tensor"))
            ),
            *(f"aten.{name}_window.default" for name in WINDOWS),
            *(f"aten.{name}_window.periodic" for name in WINDOWS),
            "aten.hamming_window.periodic_alpha",
            "aten.hamming_window.periodic_alpha_beta",
            "aten.kaiser_window.beta",
        ],
        whole,
    ),
}

AGAIN: Mapping[str, Again | None] = dict.fromkeys(
    (
        "aten.empty.memory_format",
        "aten.empty.names",
        "aten.empty_like.default",
        "aten.empty_permuted.default",
        "aten.empty_strided.default",
        "aten.new_empty.default",
        "aten.new_empty_strided.default",
    )
)
"""What is in the memory that these return can't be had again."""
