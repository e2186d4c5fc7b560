"""Formulas as text, and where a program computes them.

`0.5 * x * (1 + erf(x / 1.4142))` stands for every order in which a program may multiply and add:
products and sums are compared as collections, quotients as products, squares as products with
themselves. All that differs is how results are rounded.

    x, weight     a tensor, the same one wherever the name stands
    eps           a number, as all names in `NUMBERS`
    mean(x)       the mean along the last dimensions, kept with size 1
    wide(x)       x in f32, if it is of a narrower dtype
    narrow(y)     back in such a dtype
    erf(x) ...    functions in `FUNCTIONS`
    relu6(x)      x, but 0 where it is less, and 6 where it is more; `unit` likewise with 1
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from autopar.frontend.recognize.dataflow import Dataflow, dims_of, is_close, text_of
from autopar.ir.program import Op

FUNCTIONS = {
    "erf": "aten.erf.default",
    "tanh": "aten.tanh.default",
    "sigmoid": "aten.sigmoid.default",
    "sqrt": "aten.sqrt.default",
}
CLAMPS = {"relu6": 6.0, "unit": 1.0}
NUMBERS = frozenset(("eps",))
NARROW = frozenset(("f16", "bf16"))

_PRODUCTS = ("aten.mul.Tensor", "aten.div.Tensor", "aten.reciprocal.default")
_POWERS = ("aten.pow.Tensor_Scalar", "aten.square.default")
_ROOT = "aten.rsqrt.default"
_SUMS = ("aten.add.Tensor", "aten.sub.Tensor")
_CAST = "aten._to_copy.default"
_CLAMP = "aten.clamp.default"


@dataclass(frozen=True)
class Formula:
    """A node of a formula.

    Attributes:
        kind: `product`, `sum`, `tensor`, `number`, or the name of a function.
        name: What a tensor or a number is called.
        number: Of a product, its coefficient; of a sum, what is added.
        parts: Factors with exponents, addends with signs, or the operand of a function.
    """

    kind: str
    name: str = ""
    number: float = 0.0
    parts: tuple[tuple[Formula, int], ...] = ()


@dataclass(frozen=True)
class Match:
    """What a formula stands for in a program.

    Attributes:
        tensors: Names of values by name.
        numbers: Numbers by name.
        ops: The ops that compute it; the last one of the program first.
        dims: The dimensions along which means are taken.
    """

    tensors: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    ops: tuple[Op, ...] = ()
    dims: tuple[int, ...] | None = None

    def by(self, *ops: Op) -> Match:
        """Returns it with further ops."""
        return replace(self, ops=(*self.ops, *ops))


@dataclass(frozen=True)
class _Spread:
    """A value as a product or sum.

    Attributes:
        number: The coefficient, or what is added.
        parts: Values with exponents or signs.
        ops: What was taken apart.
    """

    number: float
    parts: tuple[tuple[str, int], ...]
    ops: tuple[Op, ...]


@cache
def formula(text: str) -> Formula:
    """Returns the formula that a text describes."""
    return _read(ast.parse(text, mode="eval").body)


def _read(node: ast.expr) -> Formula:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, (int, float))
        return Formula("number", number=float(node.value))
    if isinstance(node, ast.Name):
        return Formula("number" if node.id in NUMBERS else "tensor", node.id)
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        return Formula(node.func.id, parts=((_read(node.args[0]), 1),))
    assert isinstance(node, ast.BinOp)
    left, right = _read(node.left), _read(node.right)
    if isinstance(node.op, ast.Pow):
        return Formula("product", number=1.0, parts=((left, int(right.number)),))
    sign = -1 if isinstance(node.op, (ast.Div, ast.Sub)) else 1
    if isinstance(node.op, (ast.Add, ast.Sub)):
        return _joined("sum", left, right, sign)
    return _joined("product", left, right, sign)


def _joined(kind: str, left: Formula, right: Formula, sign: int) -> Formula:
    number, name = (1.0 if kind == "product" else 0.0), ""
    parts: list[tuple[Formula, int]] = []
    for each, power in ((left, 1), (right, sign)):
        if each.kind == kind:
            parts.extend((part, inner * power) for part, inner in each.parts)
            name = name or each.name
        elif each.kind != "number":
            parts.append((each, power))
        name = name or (each.name if each.kind == "number" else "")
        if each.kind in (kind, "number"):
            is_product = kind == "product"
            number = number * each.number**power if is_product else number + power * each.number
    return Formula(kind, name, number, tuple(parts))


def matches(wanted: Formula, name: str, flow: Dataflow, found: Match) -> Iterator[Match]:
    """Yields the ways in which a value is what a formula says.

    Args:
        wanted: The formula.
        name: The value.
        flow: The program.
        found: What is known of names in the formula.
    """
    if wanted.kind == "tensor":
        if found.tensors.get(wanted.name, name) == name:
            yield replace(found, tensors={**found.tensors, wanted.name: name})
    elif wanted.kind in ("product", "sum"):
        for spread in _spreads(name, flow, wanted):
            yield from _compared(wanted, spread, name, flow, found)
    else:
        yield from _applied(wanted, name, flow, found)


def _applied(wanted: Formula, name: str, flow: Dataflow, found: Match) -> Iterator[Match]:
    """Yields the ways in which a value is a function of something."""
    ((operand, _),) = wanted.parts
    op = flow.makers.get(name)
    if op is None or not (given := text_of(op, "self")):
        return
    if wanted.kind == "mean":
        dims = _mean_dims(op, flow)
        if dims is None or found.dims not in (None, dims):
            return
        found = replace(found, dims=dims)
    elif wanted.kind in ("wide", "narrow"):
        if not _is_cast(op, flow, *((given, name) if wanted.kind == "wide" else (name, given))):
            return
    elif wanted.kind in CLAMPS:
        least, most = (flow.number(op.arg(bound)) for bound in ("min", "max"))
        if op.kind != _CLAMP or (least, most) != (0.0, CLAMPS[wanted.kind]):
            return
    elif op.kind != FUNCTIONS[wanted.kind]:
        return
    yield from matches(operand, given, flow, found.by(op))


def _mean_dims(op: Op, flow: Dataflow) -> tuple[int, ...] | None:
    """Returns the dimensions of a mean along the last ones, which are kept; None for others."""
    if op.kind != "aten.mean.dim" or op.arg("keepdim") is not True or op.arg("dtype") is not None:
        return None
    rank = len(flow.shape(text_of(op, "self")))
    dims = tuple(sorted(dims_of(op.arg("dim"), rank) or ()))
    return dims if dims and dims == tuple(range(rank - len(dims), rank)) else None


def _is_cast(op: Op, flow: Dataflow, narrow: str, wide: str) -> bool:
    if op.kind != _CAST or {key for key, _ in op.args} != {"self", "dtype"}:
        return False
    return flow.value(narrow).dtype in NARROW and flow.value(wide).dtype == "f32"


def _compared(
    wanted: Formula, spread: _Spread, name: str, flow: Dataflow, found: Match
) -> Iterator[Match]:
    """Yields the ways in which the parts of a value are those of a product or sum."""
    if wanted.name:
        if found.numbers.get(wanted.name, spread.number) != spread.number:
            return
        found = replace(found, numbers={**found.numbers, wanted.name: spread.number})
    elif not is_close(spread.number, wanted.number, flow.value(name).dtype):
        return
    ordered = sorted(wanted.parts, key=lambda part: part[0].kind == "tensor")
    yield from _paired(ordered, spread.parts, flow, found.by(*spread.ops))


def _paired(
    wanted: Sequence[tuple[Formula, int]],
    parts: tuple[tuple[str, int], ...],
    flow: Dataflow,
    found: Match,
) -> Iterator[Match]:
    if not wanted:
        yield found
        return
    (first, power), *others = wanted
    for at, (name, own) in enumerate(parts):
        rest = (*parts[:at], *parts[at + 1 :])
        for each in _powers(first, power, name, own, flow, found):
            yield from _paired(others, rest, flow, each)


def _powers(
    wanted: Formula, power: int, name: str, own: int, flow: Dataflow, found: Match
) -> Iterator[Match]:
    """Yields the ways in which a power of a value is a power of what a formula says."""
    if own == power:
        yield from matches(wanted, name, flow, found)
    op = flow.maker(name, _ROOT)
    if op is not None and wanted.kind == "sqrt" and own == -power:
        yield from matches(wanted.parts[0][0], text_of(op, "self"), flow, found.by(op))


def _spreads(name: str, flow: Dataflow, wanted: Formula) -> Iterator[_Spread]:
    """Yields the ways to write a value as a product or sum of as many parts as are wanted."""
    is_product = wanted.kind == "product"
    begun = [_Spread(1.0 if is_product else 0.0, ((name, 1),), ())]
    seen: set[tuple[object, ...]] = set()
    while begun:
        spread = begun.pop()
        if len(spread.parts) == len(wanted.parts) and spread.ops:
            yield spread
        for at, (part, power) in enumerate(spread.parts):
            once = (factors_of if is_product else addends_of)(part, flow)
            if once is None:
                continue
            new = _replaced(spread, at, once, power, is_product)
            key = (new.number, new.parts)
            # A product with itself has a part more, until that is a square.
            if len(new.parts) <= len(wanted.parts) + 1 and key not in seen:
                seen.add(key)
                begun.append(new)


def _replaced(spread: _Spread, at: int, by: _Spread, power: int, is_product: bool) -> _Spread:
    parts: dict[str, int] = {}
    inner = [(name, own * power) for name, own in by.parts]
    for name, own in (*spread.parts[:at], *inner, *spread.parts[at + 1 :]):
        parts[name] = parts.get(name, 0) + own
    number = spread.number * by.number**power if is_product else spread.number + by.number * power
    return _Spread(number, tuple(parts.items()), (*spread.ops, *by.ops))


def factors_of(name: str, flow: Dataflow) -> _Spread | None:
    """Returns a value as a product by the op that makes it; None if that doesn't multiply."""
    op = flow.maker(name, *_PRODUCTS, *_POWERS)
    if op is None or op.arg("rounding_mode") is not None:
        return None
    if op.kind in _POWERS:
        power = flow.number(op.arg("exponent")) if op.kind == _POWERS[0] else 2.0
        whole = power in (2.0, 3.0)
        return _Spread(1.0, ((text_of(op, "self"), int(power or 0)),), (op,)) if whole else None
    if op.kind == "aten.reciprocal.default":
        return _Spread(1.0, ((text_of(op, "self"), -1),), (op,))
    return _of_two(op, flow, -1 if op.kind == "aten.div.Tensor" else 1, 1.0)


def addends_of(name: str, flow: Dataflow) -> _Spread | None:
    """Returns a value as a sum by the op that makes it; None if that doesn't add."""
    op = flow.maker(name, *_SUMS)
    if op is None or op.arg("alpha") not in (None, 1):
        return None
    return _of_two(op, flow, -1 if op.kind == "aten.sub.Tensor" else 1, 0.0)


def _of_two(op: Op, flow: Dataflow, sign: int, neutral: float) -> _Spread | None:
    """Returns the number and the values that are the two operands of an op."""
    number, parts = neutral, []
    for argument, power in (("self", 1), ("other", sign)):
        known = flow.number(op.arg(argument))
        if known is None:
            parts.append((text_of(op, argument), power))
        elif neutral == 0.0:
            number += power * known
        elif known == 0.0 or not math.isfinite(known):
            return None
        else:
            number *= known**power
    merged: dict[str, int] = {}
    for name, power in parts:
        merged[name] = merged.get(name, 0) + power
    return _Spread(number, tuple(merged.items()), (op,)) if "" not in merged else None
