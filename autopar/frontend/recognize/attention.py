"""Attention: `softmax(scale * query @ key^T + mask) @ value`, as files spell it out.

The scale may be on queries, on keys, on both, or on the products; keys and values may be repeated,
where queries share heads; halves may be widened for the softmax. A mask is added, or takes the
place of scores. Rows of nothing but `-inf` are NaN if nothing is done about it, and zeros in the
fused op. So a mask that may have them is only taken if the file makes zeros of them, too, or if
every query sees the first key, as under a causal mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autopar.frontend.recognize.algebra import NARROW, factors_of
from autopar.frontend.recognize.dataflow import Dataflow, Instead, dims_of, swapped, text_of
from autopar.frontend.recognize.masks import (
    LEAST_HIDDEN,
    Hidden,
    broadcasts,
    mask_of,
    may_add,
    may_hide,
)
from autopar.ir.expr.expression import IntExpr
from autopar.ir.program import Arg, Op, Ref, Value

KIND = "aten.scaled_dot_product_attention.default"
DTYPES = frozenset(("f16", "bf16", "f32", "f64"))
"""Those that the fused op computes in.

In f16 a large product of queries and keys is infinite, and what a file makes of it no number; the
fused op computes it in f32.
"""
_VIEW, _PERMUTE, _EXPAND = "aten.view.default", "aten.permute.default", "aten.expand.default"
_CAST = "aten._to_copy.default"


class Product(NamedTuple):
    """A matrix product of tensors with any leading dimensions.

    Attributes:
        left: A value [*b, m, k].
        right: A value [*b, k, n].
    """

    left: str
    right: str


class Shared(NamedTuple):
    """Keys or values, of which each head is repeated.

    Attributes:
        name: The value [b, h, s, e] that is repeated.
        times: How often.
    """

    name: str
    times: IntExpr


@dataclass
class Attention:
    """A reading of one attention, from its result on.

    Attributes:
        flow: The program.
        ops: What was read that must be read by nothing else.
        scale: What the products of queries and keys are multiplied by.
        wide: The values in f32 of which narrower ones are made again.
    """

    flow: Dataflow
    ops: list[Op] = field(default_factory=list)
    scale: float = 1.0
    wide: list[str] = field(default_factory=list)

    def product(self, name: str) -> Product | None:
        """Reads a matrix product, with the views around it if there are more dimensions than 3."""
        viewed = self.flow.maker(name, _VIEW)
        inner = text_of(viewed, "self") if viewed else name
        op = self.flow.maker(inner, "aten.bmm.default")
        if op is None:
            return None
        left, right = text_of(op, "self"), text_of(op, "mat2")
        if viewed:
            left, right = (self._before_view(each) for each in (left, right))
        *lead, rows, columns = self.flow.shape(name)
        inside = self.flow.shape(left)[-1]
        if self.flow.shape(left) != (*lead, rows, inside):
            return None
        if self.flow.shape(right) != (*lead, inside, columns):
            return None
        self.ops.extend([viewed, op] if viewed else [op])
        return Product(left, right)

    def _before_view(self, name: str) -> str:
        op = self.flow.maker(name, _VIEW)
        if op is None:
            return name
        self.ops.append(op)
        return text_of(op, "self")

    def unscaled(self, name: str) -> str:
        """Reads what a value is a multiple of, and notes the factor."""
        while (product := factors_of(name, self.flow)) is not None:
            parts = product.parts
            if (
                len(parts) != 1
                or parts[0][1] != 1
                or self.flow.shape(parts[0][0]) != (self.flow.shape(name))
            ):
                break
            self.scale *= product.number
            self.ops.extend(product.ops)
            name = parts[0][0]
        return name

    def unguarded(self, name: str) -> tuple[str, bool]:
        """Reads what a value is where that is a number; whether there are zeros elsewhere."""
        op = self.flow.maker(name, "aten.where.self")
        asked = self.flow.maker(text_of(op, "condition"), "aten.isnan.default") if op else None
        if op is None or asked is None or self.flow.number(op.arg("self")) != 0.0:
            return name, False
        guarded = text_of(op, "other")
        if text_of(asked, "self") != guarded:
            return name, False
        self.ops.extend((op, asked))
        return guarded, True

    def softmax(self, name: str) -> Op | None:
        """Reads a softmax, which may compute in f32 for narrower dtypes."""
        narrowed = self.flow.maker(name, _CAST)
        inner = text_of(narrowed, "self") if narrowed else name
        op = self.flow.maker(inner, "aten._softmax.default")
        if op is None or op.arg("half_to_float", False) is True:
            return None
        rank = len(self.flow.shape(inner))
        if dims_of(op.arg("dim"), rank) != (rank - 1,):
            return None
        self.ops.append(op)
        if narrowed is None:
            return op
        widened = self.flow.maker(text_of(op, "self"), _CAST)
        if widened is None or self.flow.value(inner).dtype != "f32":
            return None
        if self.flow.value(name).dtype not in NARROW:
            return None
        self.ops.extend((narrowed, widened))
        self.wide.extend((inner, widened.results[0]))
        return widened

    def hidden(self, name: str) -> tuple[str, Hidden | None]:
        """Reads scores of which some are made a number, and what hides them; None if none are."""
        op = self.flow.maker(name, "aten.where.self")
        for scores, other, chosen in (("other", "self", True), ("self", "other", False)):
            found, number = text_of(op, scores), self.flow.number(op.arg(other)) if op else None
            if op is None or number is None or not number <= LEAST_HIDDEN:
                continue
            if self._is_product(found) and self.flow.shape(found) == self.flow.shape(name):
                self.ops.append(op)
                return found, Hidden(text_of(op, "condition"), chosen, number)
        return name, None

    def unmasked(self, name: str) -> tuple[str, str]:
        """Reads what a mask is added to, and the mask; "" if there is none."""
        op = self.flow.maker(name, "aten.add.Tensor")
        if op is None or op.arg("alpha") not in (None, 1):
            return name, ""
        for scores, mask in (("self", "other"), ("other", "self")):
            found, given = text_of(op, scores), text_of(op, mask)
            if found and given and self._is_product(found):
                self.ops.append(op)
                return found, given
        return name, ""

    def _is_product(self, name: str) -> bool:
        trial = Attention(self.flow)
        return trial.product(trial.unscaled(name)) is not None


def attention(root: Op, flow: Dataflow) -> Instead | None:
    """Returns what computes an attention whose result an op makes, and what does the same.

    Args:
        root: The op.
        flow: The program.
    """
    read = Attention(flow)
    weighted = read.product(root.results[0]) if len(root.results) == 1 else None
    if weighted is None:
        return None
    weights, guarded = read.unguarded(weighted.left)
    softmax = read.softmax(weights)
    if softmax is None:
        return None
    scores, hidden = read.hidden(text_of(softmax, "self"))
    scores, mask = (scores, "") if hidden else read.unmasked(scores)
    products = read.product(read.unscaled(scores))
    shape, own = flow.shape(weights), flow.value(root.results[0]).dtype
    allowed = may_hide(hidden, own, guarded, flow) if hidden else may_add(mask, own, guarded, flow)
    if products is None or not allowed or not broadcasts(mask or hidden, shape, flow):
        return None
    query, turned = read.unscaled(products.left), read.unscaled(products.right)
    if not _fits(read, root, (query, turned, weighted.right, mask)):
        return None
    return _written(root, read, (query, turned, weighted.right), mask or hidden)


def _fits(read: Attention, root: Op, operands: Sequence[str]) -> bool:
    """Returns whether the fused op takes these, and nothing else reads what it won't make."""
    flow, own = read.flow, read.flow.value(root.results[0]).dtype
    named = [name for op in read.ops for name in op.results if op.kind != "aten.isnan.default"]
    narrow = [name for name in (*filter(None, operands), *named) if name not in read.wide]
    same = all(flow.value(name).dtype == own for name in narrow)
    return own in DTYPES and same and math.isfinite(read.scale) and flow.are_inner(read.ops, root)


def _written(
    root: Op, read: Attention, operands: Sequence[str], mask: str | Hidden | None
) -> Instead:
    """Returns the fused op, and before it what brings keys into its order, and makes a mask."""
    query, turned, value = operands
    flow = read.flow
    key, before, values = _turned_back(turned, root, flow)
    args: dict[str, Arg] = {"query": Ref(query), "key": Ref(key), "value": Ref(value)}
    if isinstance(mask, Hidden):
        made = mask_of(mask, root, flow)
        before, values, mask = (*before, *made.ops), {**values, **made.values}, made.name
    if mask:
        args["attn_mask"] = Ref(mask)
    args["scale"] = read.scale
    shared, also = _shared(key, flow), _shared(value, flow)
    if shared and also and shared.times == also.times:
        args |= {"key": Ref(shared.name), "value": Ref(also.name), "enable_gqa": True}
    fused = replace(root, kind=KIND, args=tuple(args.items()))
    return Instead(read.ops, (*before, fused), values)


def _turned_back(
    name: str, root: Op, flow: Dataflow
) -> tuple[str, Sequence[Op], Mapping[str, Value]]:
    """Returns keys [*b, s, e] for [*b, e, s], the ops that make them, and the values of those."""
    rank = len(flow.shape(name))
    op = flow.maker(name, _PERMUTE)
    source, dims = (text_of(op, "self"), dims_of(op.arg("dims"), rank)) if op else (name, None)
    order = swapped(dims or range(rank))
    if order == tuple(range(rank)):
        return source, (), {}
    made = flow.fresh(f"{root.results[0]}.key")
    args: dict[str, Arg] = {"self": Ref(source), "dims": order}
    turned = replace(op or root, kind=_PERMUTE, args=tuple(args.items()), results=(made,))
    shape = swapped(flow.shape(name))
    value = replace(flow.value(name), name=made, shape=shape, role="activation")
    return made, (turned,), {made: value}


def _shared(name: str, flow: Dataflow) -> Shared | None:
    """Returns what keys or values [b, h r, s, e] repeat; None if they repeat nothing."""
    joined = flow.maker(name, _VIEW)
    repeated = flow.maker(text_of(joined, "self"), _EXPAND) if joined else None
    single = flow.maker(text_of(repeated, "self"), _VIEW) if repeated else None
    if repeated is None or single is None or len(flow.shape(name)) != 4:
        return None
    wide, source = flow.shape(repeated.results[0]), text_of(single, "self")
    if len(wide) != 5 or len(flow.shape(source)) != 4:
        return None
    batch, heads, times, *rows = wide
    shapes = (flow.shape(name), flow.shape(single.results[0]), flow.shape(source))
    expected = ((batch, heads * times, *rows), (batch, heads, 1, *rows), (batch, heads, *rows))
    return Shared(source, times) if shapes == expected else None
