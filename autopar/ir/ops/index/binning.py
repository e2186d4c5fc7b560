"""Ops that look elements up in a set, count them in bins, or reduce them in segments."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.ops.index.indexing import BISECTION
from autopar.ir.ops.table import (
    RuleFunction,
    Table,
    axis,
    dense,
    factors,
    operand_dims,
    pending,
    same,
)
from autopar.ir.rules.rule import SAME, Dims, OpCall, Rule, build_rule


def membership(call: OpCall) -> Rule | None:
    """aten.isin: whether any test element equals an element, or none does.

    Many test elements are sorted, and looked up by bisection.
    """
    by_name: dict[str, Dims] = {}
    for name, prefix in (("elements", "e"), ("test_elements", "t")):
        tensor = call.tensor(name)
        if tensor is not None:
            by_name[name] = factors(prefix, len(tensor.shape))
    monoid = "all" if call.flag("invert") else "any"
    reduce = {name: monoid for (name,) in by_name.get("test_elements", ())}
    result = by_name.get("elements", ())
    return build_rule(
        call,
        operand_dims(call, by_name),
        [result],
        reduce=reduce,
        work=BISECTION if reduce else 1,
        unscaled=list(reduce),
    )


def histogram(call: OpCall) -> Rule | None:
    """aten.histogram: counts, or sums of weights, per bin, and the edges of the bins."""
    dims = factors("i", len(call.operands[0].shape))
    return _histogram(call, {"self": dims, "weight": dims}, [name for (name,) in dims])


def points_histogram(call: OpCall) -> Rule | None:
    """A histogram of points [*i, n], each a row of coordinates; or the edges of its bins."""
    dims = factors("i", len(call.operands[0].shape) - 1)
    points: Dims = (*dims, ("n",))
    return _histogram(call, {"self": points, "weight": dims}, [name for (name,) in dims])


def _histogram(call: OpCall, by_name: Mapping[str, Dims], counted: list[str]) -> Rule | None:
    """Returns the rule of a histogram over the factors `counted`.

    Counts add up if the bins don't depend on the data, and counts are not made a density.
    """
    own: list[str] = []
    edges: list[Dims] = []
    for position in call.positions.get("bins", ()):
        edges.append(factors(f"e{position}_", len(call.operands[position].shape)))
    results = [factors(f"r{at}_", len(r.shape)) for at, r in enumerate(call.results)]
    for dims in (*edges, *results, (("n",),)):
        own.extend(name for (name,) in dims)
    operands: list[Dims] = []
    for name, positions in call.positions.items():
        if positions:
            operands.extend(edges if name == "bins" else [by_name[name]])
    fixed = bool(edges) or call.args.get("range") is not None
    additive = fixed and not call.flag("density")
    return build_rule(
        call,
        operands,
        results,
        reduce={
            (name, at): "sum" if at == 0 and "edges" not in call.kind else SAME
            for name in counted
            for at in range(len(results))
        },
        whole=own if additive else [*own, *counted],
        work=0,
    )


def segments(gradient: bool) -> RuleFunction:
    """Returns the rule function of aten.segment_reduce, or of its gradient.

    Lengths [*b, s] cut `data` [*b, n, *d] into pieces along `axis`, each reduced to one of [*b, s,
    *d]. Pieces have any length, so neither `n` nor `s` may be split.
    """

    def rule(call: OpCall) -> Rule | None:
        data = call.tensor("data")
        if data is None or call.tensor("indices") is not None:
            return None
        at = axis(call, len(data.shape), "axis")
        lead, trail = factors("b", at), factors("d", len(data.shape) - at - 1)
        whole: Dims = (*lead, ("n",), *trail)
        pieces: Dims = (*lead, ("s",), *trail)
        by_name: dict[str, Dims] = {"data": whole, "lengths": (*lead, ("s",))}
        by_name |= {"offsets": (*lead, ("o",)), "grad": pieces, "output": pieces}
        return build_rule(
            call,
            operand_dims(call, by_name),
            [whole if gradient else pieces],
            whole=("n", "s", "o"),
            # What depends on `lengths` alone is repeated for every part of `d`.
            linear=(pending(0),) if gradient else (),
            aside=("s", "o"),
        )

    return rule


RULES: Table = {
    "aten.isin.Tensor_Tensor": dense(membership),
    **same(["aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor"], membership),
    **same(["aten.histogram.bin_ct", "aten.histogram.bins_tensor"], histogram),
    **same(
        [
            "aten._histogramdd_bin_edges.default",
            "aten._histogramdd_from_bin_cts.default",
            "aten._histogramdd_from_bin_tensors.default",
        ],
        points_histogram,
    ),
    "aten.segment_reduce.default": segments(gradient=False),
    "aten._segment_reduce_backward.default": segments(gradient=True),
}
