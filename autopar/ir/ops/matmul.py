"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autopar.ir.rule import Linear, OpCall, Rule, make_rule

BILINEAR = (Linear(frozenset((0,))), Linear(frozenset((1,))))


def mm(call: OpCall) -> Rule:
    """aten.mm: [m, k] x [k, n]."""
    return make_rule("m k, k n -> m n", call, reduce={"k": "sum"}, linear=BILINEAR, work=2)


def bmm(call: OpCall) -> Rule:
    """aten.bmm: [b, m, k] x [b, k, n]."""
    return make_rule("b m k, b k n -> b m n", call, reduce={"k": "sum"}, linear=BILINEAR, work=2)


RULES: Mapping[str, Callable[[OpCall], Rule | None]] = {
    "aten.mm.default": mm,
    "aten.bmm.default": bmm,
}
