"""Masks under which every query sees the first key, as it does under those that are causal.

Files make such a mask of the places of queries and keys, or cut it off along a diagonal. What is
asked of it is a column, that of the first key: whether all queries have the same number there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from autopar.frontend.recognize.dataflow import Dataflow, text_of
from autopar.frontend.recognize.places import Places, places
from autopar.ir.expr.facts import is_at_least
from autopar.ir.program import Op

Number = float | bool
_Compare = Callable[[float, float], bool]

MOST_SEEN = 1e3
"""What a mask adds at most to scores that count."""

_KEPT = frozenset(("aten.view.default", "aten.unsqueeze.default", "aten.expand.default"))
_COMPARED: Mapping[str, _Compare] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_COMPUTED: Mapping[str, _Compare | Callable[[float, float], float]] = {
    "aten.logical_and.default": lambda one, other: bool(one) and bool(other),
    "aten.logical_or.default": lambda one, other: bool(one) or bool(other),
    "aten.mul.Tensor": operator.mul,
    "aten.sub.Tensor": operator.sub,
    "aten.add.Tensor": operator.add,
    **{f"aten.{name}.Scalar": compare for name, compare in _COMPARED.items()},
    **{f"aten.{name}.Tensor": compare for name, compare in _COMPARED.items()},
}


def at_first_key(name: str, flow: Dataflow) -> Number | None:
    """Returns the number that is first along the last dimension, in all rows; None if unknown.

    Args:
        name: A mask, or what one is made of.
        flow: The program.
    """
    if name in flow.numbers:
        return flow.numbers[name]
    op = flow.makers.get(name)
    if op is None or op.arg("alpha") is not None:
        return None
    if op.kind in _COMPUTED:
        found = _computed(op, flow)
        return _of_places(op, flow) if found is None else found
    if op.kind == "aten.full.default":
        return flow.number(op.arg("fill_value"))
    if op.kind == "aten.where.self":
        return _chosen(op, flow)
    if op.kind in ("aten.tril.default", "aten.triu.default"):
        return _cut_off(op, flow)
    return _passed_on(op, flow)


def sees_first_key(mask: str, flow: Dataflow) -> bool:
    """Returns whether what is added to scores hides the first key from no query."""
    found = at_first_key(mask, flow)
    return found is not None and abs(found) <= MOST_SEEN


def _computed(op: Op, flow: Dataflow) -> Number | None:
    one, other = (_operand(op, name, flow) for name in ("self", "other"))
    if one is None or other is None:
        return None
    return _COMPUTED[op.kind](one, other)


def _operand(op: Op, name: str, flow: Dataflow) -> Number | None:
    number = flow.number(op.arg(name))
    return at_first_key(text_of(op, name), flow) if number is None else number


def _of_places(op: Op, flow: Dataflow) -> bool | None:
    """Returns how the first places along the last dimension compare, in all rows alike."""
    _, name, overload = op.kind.split(".")
    if name not in ("lt", "le", "gt", "ge") or overload != "Tensor":
        return None
    left, right = (_first_of(op, each, flow) for each in ("self", "other"))
    if left is None or right is None:
        return None
    if name in ("gt", "ge"):
        left, right = right, left
    if _is_below(left, right, 0 if name in ("le", "ge") else 1):
        return True
    return False if _is_below(right, left, 1 if name in ("le", "ge") else 0) else None


def _first_of(op: Op, name: str, flow: Dataflow) -> Places | None:
    """Returns the places of an operand in the rows of the result, without the last dimension."""
    found = places(text_of(op, name), flow)
    if found is None:
        return None
    rank = len(flow.shape(op.results[0]))
    return Places(found.start, ((0,) * (rank - len(found.steps)) + tuple(found.steps))[: rank - 1])


def _is_below(less: Places, more: Places, by: int) -> bool:
    """Returns whether all places are below others, by so much at least."""
    steps = zip(less.steps, more.steps, strict=True)
    return is_at_least(more.start, less.start + by) and all(is_at_least(b, a) for a, b in steps)


def _chosen(op: Op, flow: Dataflow) -> Number | None:
    which = at_first_key(text_of(op, "condition"), flow)
    if which is None:
        return None
    return _operand(op, "self" if which else "other", flow)


def _cut_off(op: Op, flow: Dataflow) -> Number | None:
    """Returns the number that a triangle has in its first column, if it has all or none of it."""
    diagonal = op.arg("diagonal", 0)
    if not isinstance(diagonal, int):
        return None
    if op.kind == "aten.triu.default":
        return 0.0 if diagonal > 0 else None
    return at_first_key(text_of(op, "self"), flow) if diagonal >= 0 else None


def _passed_on(op: Op, flow: Dataflow) -> Number | None:
    """Returns the number of an operand that an op lays out, casts or negates."""
    source = text_of(op, "self")
    if op.kind == "aten.logical_not.default":
        found = at_first_key(source, flow)
        return None if found is None else not found
    if op.kind == "aten._to_copy.default":
        found = at_first_key(source, flow)
        is_bool = flow.value(op.results[0]).dtype == "bool"
        return bool(found) if is_bool and found is not None else found
    if op.kind not in _KEPT or not source:
        return None
    before, after = (flow.shape(name)[-1:] for name in (source, op.results[0]))
    widened = op.kind == "aten.expand.default" and before in ((), (1,))
    return at_first_key(source, flow) if widened or before == after else None
