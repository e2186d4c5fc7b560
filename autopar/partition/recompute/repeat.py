"""Which ops may be computed twice, and the op that does it.

The ops of a program are functions of their operands, random ones too: they draw by seed and number.
What is left out may be anything (ops of other libraries), is no kernel of its own (control flow),
or reads state that is updated in place.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.foreign import FUNCTIONAL, bare_kind
from autopar.ir.program import Op

PLAN = "recompute"
"""The plan field of copies; its value is the first result of the op that they repeat."""

_OWN = ("aten", "autopar", "comm")
_CREATED = ("aten.empty", "aten.new_empty", "aten.empty_like")
"""What these return is whatever memory holds."""

_STATELESS = {
    "aten._native_batch_norm_legit_functional.default": "aten._native_batch_norm_legit.no_stats"
}
"""Ops that read and renew running statistics, and those that compute the rest of their results."""

_STATE = ("running_mean", "running_var")
_STATELESS_RESULTS = 3


def repeated(op: Op) -> Op | None:
    """Returns the op that computes the results of a forward op again, or the first ones of them.

    None if the op must not be repeated.
    """
    if op.phase != "forward" or op.kind.startswith((FUNCTIONAL, *_CREATED)):
        return None
    if bare_kind(op.kind).partition(".")[0] not in _OWN or "." not in op.kind:
        return None
    if op.kind in _STATELESS:
        args = tuple((name, arg) for name, arg in op.args if name not in _STATE)
        op = replace(
            op,
            kind=_STATELESS[op.kind],
            args=args,
            results=op.results[:_STATELESS_RESULTS],
        )
    return replace(op, phase="backward", plan=(*op.plan, (PLAN, op.results[0])))
