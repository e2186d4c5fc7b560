"""Calls of ops with a size that is open: with the number put in, a rule is that of the number."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from autopar.ir.expr.expression import (
    Expr,
    IntExpr,
    Size,
    add,
    floordiv,
    multiply,
    prod,
    substitute,
)
from autopar.ir.ops import RULES, rule_of
from autopar.ir.ops.shape import view
from autopar.ir.program import Arg, Op, Ref, Value
from autopar.ir.rules import local_arg
from autopar.ir.rules.rule import Body, Dims, OpCall, Rule, RuleError, TensorType, as_number
from tests.ops.sample import Sample
from tests.ops.samples import samples_by_kind
from tests.ops.split_run_combine import check_splits


@dataclass(frozen=True)
class Opened:
    """A sample one of whose factors has an open size.

    Attributes:
        sample: The sample.
        factor: The factor.
        size: Its size.
        sizes: Of all factors, with those that follow from it.
    """

    sample: Sample
    factor: str
    size: Size
    sizes: Mapping[str, IntExpr]

    @property
    def known(self) -> dict[str, int]:
        """The number that the sample has."""
        return {str(self.size): self.size.planned}

    def shape(self, dims: Dims) -> tuple[IntExpr, ...]:
        return tuple(prod(self.sizes[name] for name in dim) for dim in dims)

    def call(self, rule: Rule) -> OpCall:
        call = self.sample.call
        operands, results = (
            tuple(
                TensorType(self.shape(dims), tensor.dtype)
                for dims, tensor in zip(side, tensors, strict=True)
            )
            for side, tensors in ((rule.operands, call.operands), (rule.results, call.results))
        )
        args = {name: self._arg(name, arg, rule) for name, arg in call.args.items()}
        return OpCall(call.kind, args, operands, results)

    def _arg(self, name: str, arg: Arg, rule: Rule) -> Arg:
        """Returns an argument, with the sizes that follow: those that depend on the shard."""
        local = rule.local.get(name)
        if name == "normalized_shape" and isinstance(arg, tuple):
            return self.shape(rule.operands[0][-len(arg) :])
        if isinstance(local, local_arg.Sizes) and isinstance(arg, tuple):
            pairs = zip(local.entries, arg, strict=True)
            return tuple(self._entry(entry, given) for entry, given in pairs)
        return self._entry(local, arg)

    def _entry(self, entry: object, given: Arg) -> Arg:
        """Returns what is a product of factors' sizes, if that is what is given."""
        if isinstance(entry, local_arg.IfSplit):
            return self._entry(entry.otherwise, given)
        if isinstance(entry, local_arg.Size):
            entry, scale = entry.factors, entry.scale
        else:
            scale = 1
        if not isinstance(entry, tuple) or self.factor not in entry:
            return given
        product = multiply(prod(self.sizes[name] for name in entry), scale)
        return product if substitute(product, self.known) == given else given


def opened(sample: Sample, rule: Rule) -> Iterator[Opened]:
    """Yields a sample once per factor that can be open."""
    for factor, bound in rule.sizes.items():
        # What lies between common factors of two shapes is another number in either.
        between = factor in rule.whole and sample.kind in view.RULES
        if as_number(bound) > 1 and not between and not _is_weights(sample, factor):
            size = Size("n", planned=as_number(bound))
            sizes = _following(rule, factor, size)
            alike = [name for name in sizes if factor == "c" and _is_weights(sample, name)]
            yield Opened(sample, factor, size, {**sizes, **dict.fromkeys(alike, size)})


def _is_weights(sample: Sample, factor: str) -> bool:
    """Whether a factor stands for classes, as `c` does, by whose number losses look up weights."""
    return factor == "k" and "_loss" in sample.kind


def _following(rule: Rule, factor: str, size: Size) -> dict[str, IntExpr]:
    """Returns the sizes of all factors, with those that follow where one is a window of another."""
    sizes: dict[str, IntExpr] = {**rule.sizes, factor: size}
    for read, each in rule.windows.items():
        count, covered, stride = (
            as_number(rule.sizes[each.of]),
            as_number(rule.sizes[read]),
            each.stride,
        )
        if read == factor:
            beyond = (count - 1) * abs(stride) - covered
            sizes[each.of] = add(floordiv(add(size, beyond), abs(stride)), 1)
        elif each.of == factor and each.fill != "none":
            sizes[read] = add(multiply(size, abs(stride)), covered - count * abs(stride))
    return sizes


def known(found: Any, sizes: Mapping[str, int]) -> Any:
    """Returns what is made of expressions, with the numbers of the open sizes."""
    if isinstance(found, Expr):
        return substitute(found, sizes)
    if isinstance(found, local_arg.Size) and not found.factors:
        return known(found.scale, sizes)
    if isinstance(found, Mapping):
        return {key: known(each, sizes) for key, each in found.items()}
    if isinstance(found, (tuple, list)):
        return type(found)(known(each, sizes) for each in found)
    if is_dataclass(found) and not isinstance(found, type):
        changed = {f.name: known(getattr(found, f.name), sizes) for f in fields(found) if f.init}
        return replace(found, **changed)
    return found


def asked(call: OpCall) -> Rule | None:
    """Returns the rule of a call, None if it has none."""
    try:
        return RULES[call.kind](call)
    except RuleError:
        return None


def check(each: Opened, rule: Rule) -> set[str]:
    """Checks the rule with an open size, and returns what it loses."""
    call = each.call(rule)
    found = asked(call)
    if found is None:
        return {"rule"}
    check_others(each, call, found)
    bare = known(replace(found, bodies=()), each.known)
    if not alike(bare, rule):
        check_splits(each.sample, bare)
        return {"factor"}
    covered = {name for read, window in rule.windows.items() for name in (read, window.of)}
    assert not differing(bare, rule), f"{each.sample} {each.factor}: {bare}, not {rule}"
    assert bare.whole <= rule.whole | covered | {each.factor}, f"{each.sample} {each.factor}"
    lost = {"split"} if set(bare.splittable) != set(rule.splittable) else set[str]()
    return lost | check_bodies(each, call, found, rule)


def check_others(each: Opened, call: OpCall, found: Rule) -> None:
    """Checks that a rule holds for other numbers than the one that is planned."""
    for other in (each.size.planned + 1, each.size.planned * 2):
        sizes = {str(each.size): other}
        bare, rule = known(replace(found, bodies=()), sizes), asked(known(call, sizes))
        if rule and alike(bare, rule):
            assert not differing(bare, rule), f"{each.sample} {each.factor} {other}"


def alike(bare: Rule, rule: Rule) -> bool:
    """Whether two rules have the same factors."""
    same = bare.operands == rule.operands and bare.results == rule.results
    return same and bare.sizes == rule.sizes


def differing(bare: Rule, rule: Rule) -> list[str]:
    """Returns what a rule says that another one, of the same factors, doesn't."""
    bare, rule = settled(bare, bare.whole), settled(rule, bare.whole)
    parts = ("reduce", "once", "indexed", "numbered", "windows", "local")
    found = [
        part
        for part in parts
        if not all(item in getattr(rule, part).items() for item in getattr(bare, part).items())
    ]
    found += [part for part in ("sizes", "linear") if getattr(bare, part) != getattr(rule, part)]
    return found if bare.whole >= rule.whole else [*found, "whole"]


def settled(found: Any, whole: Collection[str]) -> Any:
    """Returns arguments as they are where factors that must be whole aren't split."""
    if isinstance(found, Rule):
        return replace(found, bodies=(), local=settled(found.local, whole))
    if isinstance(found, Mapping):
        return {name: settled(arg, whole) for name, arg in found.items()}
    if isinstance(found, local_arg.Sizes):
        return local_arg.Sizes(tuple(settled(entry, whole) for entry in found.entries))
    is_settled = isinstance(found, local_arg.IfSplit) and found.factor in whole
    return settled(found.otherwise, whole) if is_settled else found


def check_bodies(each: Opened, call: OpCall, found: Rule, rule: Rule) -> set[str]:
    """Checks that bodies are the same ops, which have rules themselves."""
    named, lost = {body.name: body for body in rule.bodies}, set[str]()
    for body in found.bodies:
        values = valued(call)
        ops, new = expanded(each.sample, body, call)
        same = named.pop(body.name, None)
        values |= {value.name: value for value in new}
        assert all(rule_of(op, values) for op in ops), f"{each.sample} {each.factor}"
        if same is None:
            continue
        shape = known(replace(body.rule, bodies=()), each.known)
        assert set(shape.splittable) <= set(same.rule.splittable), f"{each.sample} {each.factor}"
        lost |= {"split"} if shape.splittable != same.rule.splittable else set()
        bare = [replace(op, plan=()) for op in ops]
        assert known((bare, new), each.known) == expanded(each.sample, same, each.sample.call)
    return {*lost, "body"} if named else lost


def valued(call: OpCall) -> dict[str, Value]:
    """Returns the values that a call reads and makes."""
    names = [f"x{at}" for at in range(len(call.operands))]
    names += [f"y{at}" for at in range(len(call.results))]
    types = zip(names, (*call.operands, *call.results), strict=True)
    return {name: Value(name, each.dtype, each.shape) for name, each in types}


def expanded(sample: Sample, body: Body, call: OpCall) -> tuple[list[Op], list[Value]]:
    """Returns what a body makes of a call."""
    count = itertools.count()
    op = replace(sample.op, args=tuple(call.args.items()))
    ops, new = body.expand(op, valued(call), lambda hint: f"{hint}.{next(count)}")
    return list(ops), list(new)


@dataclass(frozen=True)
class Loss:
    """What rules lose where a size is open.

    Attributes:
        what: `rule`: there is none. `split`: the factor, or one that is a window of it, must be
            whole. `factor`: it isn't found. `body`: there is none that splits more.
        why: The reason.
        kinds: The ops.
    """

    what: str
    why: str
    kinds: Sequence[str]


def check_losses(kind: str, losses: Sequence[Loss]) -> None:
    """Checks all samples of an op, which may lose what is listed, and nothing else is."""
    lost: set[str] = set()
    for sample in samples_by_kind()[kind]:
        rule = asked(sample.call)
        for each in opened(sample, rule) if rule else ():
            lost |= check(each, rule)
    name = kind.removeprefix("aten.")
    assert lost == {loss.what for loss in losses if name in loss.kinds}, kind


Shapes = Sequence[Sequence[IntExpr]]


def described(
    kind: str,
    names: Sequence[str],
    operands: Shapes,
    results: Shapes,
    args: Mapping[str, Arg],
) -> str:
    """Returns the text of a call's rule, and what may be split: by the op, and by its bodies."""
    tensors: dict[str, Arg] = {name: Ref("x") for name in names}
    sides = ([TensorType(tuple(shape), "f32") for shape in side] for side in (operands, results))
    call = OpCall(kind, {**tensors, **args}, *map(tuple, sides))
    rule = RULES[call.kind](call)
    assert rule is not None
    bodies = (f"; {body.name}: {' '.join(body.rule.splittable)}" for body in rule.bodies)
    return f"{rule}; {' '.join(rule.splittable)}{''.join(bodies)}"
