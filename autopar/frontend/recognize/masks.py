"""Masks of attention: what is added to scores, and what takes their place.

Of a row in which all keys are hidden, files and the fused op may make different things: so that is
either impossible, or seen to be the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autopar.frontend.recognize.dataflow import Dataflow, text_of
from autopar.frontend.recognize.first_key import at_first_key, sees_first_key
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Arg, DType, Op, Ref, Value

LEAST_HIDDEN = -1e4
"""Scores that are hidden from queries are made at most this."""
ABSORBING = -1e30
"""Beside such a number any score is lost in rounding; f16 has none."""

_VIEWS = ("aten.view.default", "aten.unsqueeze.default", "aten.expand.default")
_MADE_OF_NUMBERS = frozenset(
    (
        "aten.mul.Tensor",
        "aten.sub.Tensor",
        "aten.where.self",
        "aten._to_copy.default",
        *_VIEWS,
    )
)


class Hidden(NamedTuple):
    """A mask that files choose in the place of scores.

    Attributes:
        condition: Where; as many dimensions as it has broadcast to the scores.
        chosen: Whether scores are hidden where that holds; otherwise where it doesn't.
        number: What they are made.
    """

    condition: str
    chosen: bool
    number: float

    def sees_first_key(self, flow: Dataflow) -> bool:
        """Returns whether it hides the first key from no query."""
        return at_first_key(self.condition, flow) is (not self.chosen)


def broadcasts(mask: str | Hidden | None, scores: Sequence[IntExpr], flow: Dataflow) -> bool:
    """Returns whether a mask broadcasts to scores."""
    if not mask:
        return True
    shape = flow.shape(mask.condition if isinstance(mask, Hidden) else mask)
    if len(shape) < 2 or len(shape) > len(scores):
        return False
    pairs = zip(shape[::-1], scores[::-1], strict=False)
    return all(size in (1, whole) for size, whole in pairs)


def may_add(mask: str, dtype: str, guarded: bool, flow: Dataflow) -> bool:
    """Returns whether rows in which a mask hides all keys are as in the fused op."""
    if not mask or sees_first_key(mask, flow):
        return True
    if guarded and _is_all_or_nothing(mask, flow):
        return True
    # In f16 the sum of the least number and a score is rounded to one of few.
    return dtype != "f16" and (guarded or _is_finite(mask, flow))


def may_hide(hidden: Hidden, dtype: str, guarded: bool, flow: Dataflow) -> bool:
    """Returns whether rows in which all scores are hidden are as in the fused op."""
    if hidden.sees_first_key(flow):
        return True
    if math.isinf(hidden.number):
        return guarded
    return dtype != "f16" and hidden.number <= ABSORBING


def _is_all_or_nothing(name: str, flow: Dataflow) -> bool:
    """Returns whether a mask is made of 0 and `-inf`, by choices."""
    known = flow.numbers.get(name)
    if known is not None:
        return known in (0.0, -math.inf)
    op = flow.maker(name, "aten.where.self", *_VIEWS)
    chosen = [text_of(op, each) for each in ("self", "other") if op and op.arg(each) is not None]
    return bool(chosen) and all(each and _is_all_or_nothing(each, flow) for each in chosen)


def _is_finite(name: str, flow: Dataflow) -> bool:
    """Returns whether a mask is made of finite numbers, by products, differences and choices.

    Those may still overflow, as where a mask of integers has others than 0 and 1.
    """
    known = flow.numbers.get(name)
    if known is not None:
        return math.isfinite(known)
    if flow.value(name).dtype in ("bool", "i8", "u8", "i16", "i32", "i64"):
        return True
    op = flow.makers.get(name)
    if op is None or op.kind not in _MADE_OF_NUMBERS:
        return False
    numbers = [arg for _, arg in op.args if isinstance(arg, float)]
    return all(map(math.isfinite, numbers)) and all(_is_finite(n, flow) for n in op.operands)


class Made(NamedTuple):
    """A value that isn't there yet.

    Attributes:
        name: It.
        ops: What makes it.
        values: It, and those it is made of.
    """

    name: str
    ops: Sequence[Op]
    values: Mapping[str, Value]


def mask_of(hidden: Hidden, root: Op, flow: Dataflow) -> Made:
    """Returns what is added to scores in the place of what hides them."""
    dtype, result = flow.value(root.results[0]).dtype, root.results[0]
    names = [flow.fresh(f"{result}.{each}") for each in ("seen", "hidden", "mask")]
    shapes: tuple[tuple[IntExpr, ...], ...] = ((), (), flow.shape(hidden.condition))
    fills = zip(names, (0.0, hidden.number), strict=False)
    ops = [_filled(root, name, number, dtype) for name, number in fills]
    low, zero = Ref(names[1]), Ref(names[0])
    args: dict[str, Arg] = {"condition": Ref(hidden.condition)}
    args |= {"self": low, "other": zero} if hidden.chosen else {"self": zero, "other": low}
    ops.append(replace(root, kind="aten.where.self", args=tuple(args.items()), results=(names[2],)))
    values = {n: Value(n, dtype, shape) for n, shape in zip(names, shapes, strict=True)}
    return Made(names[2], ops, values)


def _filled(root: Op, name: str, number: float, dtype: str) -> Op:
    args: dict[str, Arg] = {"size": (), "fill_value": number, "dtype": DType(dtype)}
    return replace(root, kind="aten.full.default", args=tuple(args.items()), results=(name,))
