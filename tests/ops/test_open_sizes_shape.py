"""Rules with a size that is open: with the number put in, each is the rule of that number.

Every sample of an op that moves, indexes, reduces, normalizes or creates is taken once per factor
of its rule, with the size of that factor left open, and all that follows from it. What the rule
loses by that is listed: no rule at all, a factor that isn't split any more, or a body.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import pytest

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
from autopar.ir.ops import RULES, call_of
from autopar.ir.ops.create import creation, random
from autopar.ir.ops.index import advanced, binning, embedding_bag, indexing, writing
from autopar.ir.ops.normalize import batch_norm, group_norm, normalization
from autopar.ir.ops.reduce import arg_reduction, reduction, softmax, sort, vector_norm
from autopar.ir.ops.shape import diagonal, insertion, layout, view, window
from autopar.ir.program import Arg, Op, Ref, Value
from autopar.ir.rules import local_arg
from autopar.ir.rules.rule import Body, Dims, OpCall, Rule, RuleError, TensorType, number
from tests.ops.sample import Sample
from tests.ops.samples import samples_by_kind
from tests.ops.split_run_combine import check_splits

TABLES = (
    *(creation, random, advanced, binning, embedding_bag, indexing, writing),
    *(batch_norm, group_norm, normalization, arg_reduction, reduction, softmax, sort, vector_norm),
    *(diagonal, insertion, layout, view, window),
)
KINDS = sorted(kind for table in TABLES for kind in table.RULES if kind in samples_by_kind())


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
        if number(bound) > 1 and not between:
            size = Size("n", planned=number(bound))
            yield Opened(sample, factor, size, _following(rule, factor, size))


def _following(rule: Rule, factor: str, size: Size) -> dict[str, IntExpr]:
    """Returns the sizes of all factors, with those that follow where one is a window of another."""
    sizes: dict[str, IntExpr] = {**rule.sizes, factor: size}
    for read, each in rule.windows.items():
        count, covered, stride = number(rule.sizes[each.of]), number(rule.sizes[read]), each.stride
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
    return bare.operands == rule.operands and bare.results == rule.results


def differing(bare: Rule, rule: Rule) -> list[str]:
    """Returns what a rule says that another one, of the same factors, doesn't."""
    parts = ("reduce", "once", "indexed", "numbered", "windows", "local")
    found = [
        part
        for part in parts
        if not all(item in getattr(rule, part).items() for item in getattr(bare, part).items())
    ]
    found += [part for part in ("sizes", "linear") if getattr(bare, part) != getattr(rule, part)]
    return found if bare.whole >= rule.whole else [*found, "whole"]


def check_bodies(each: Opened, call: OpCall, found: Rule, rule: Rule) -> set[str]:
    """Checks that bodies are the same ops, which have rules themselves."""
    named = {body.name: body for body in rule.bodies}
    for body in found.bodies:
        same = named.pop(body.name)
        shape = known(replace(body.rule, bodies=()), each.known)
        assert shape.splittable == same.rule.splittable
        values = valued(call)
        ops, new = expanded(each.sample, body, call)
        assert known((ops, new), each.known) == expanded(each.sample, same, each.sample.call)
        values |= {value.name: value for value in new}
        assert all(asked(call_of(op, values)) for op in ops), f"{each.sample} {each.factor}"
    return {"body"} if named else set()


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


SLICES = ("slice.Tensor", "slice_copy.Tensor", "slice_backward.default", "slice_scatter.default")
UNFOLDS = ("unfold.default", "unfold_copy.default")
DIAGONALS = ("diagonal", "diagonal_copy", "diag_embed", "diagonal_backward", "diagonal_scatter")
SPREADS = ("var", "std", "var_mean", "std_mean")

LOSSES = (
    Loss(
        "rule",
        "the factor is an argument that says how often, how large or how many",
        (
            *("pixel_shuffle.default", "pixel_unshuffle.default", "repeat_interleave.self_int"),
            *("im2col.default", "native_group_norm.default", "native_group_norm_backward.default"),
        ),
    ),
    Loss(
        "split",
        "what a part reads of an open size, or of several side by side, isn't known in numbers",
        (
            *("cat.default", "constant_pad_nd.default", "flip.default", "im2col.default"),
            *("narrow_copy.default", "roll.default", "rot90.default", *SLICES, *UNFOLDS),
            *(
                f"{kind}_pad{n}d.default"
                for kind in ("reflection", "replication")
                for n in (1, 2, 3)
            ),
        ),
    ),
    Loss(
        "factor",
        "an open size may have no divisor in common with a number, and be shorter or longer",
        (
            *("narrow_copy.default", "view.default", *SLICES),
            *("unfold_backward.default", *UNFOLDS),
            *(f"{kind}.default" for kind in DIAGONALS),
        ),
    ),
    Loss(
        "body",
        "the body divides by how many elements there are, which is no number",
        (
            *("mean.default", "mean.dim"),
            *(f"{kind}.{overload}" for kind in SPREADS for overload in ("dim", "correction")),
            *("layer_norm.default", "native_layer_norm.default"),
            *("native_layer_norm_backward.default", "rms_norm.default", "_fused_rms_norm.default"),
            *("native_group_norm.default", "native_group_norm_backward.default"),
            *("batch_norm.default", "native_batch_norm.default", "batch_norm_backward.default"),
            *("native_batch_norm_backward.default", "_native_batch_norm_legit.no_stats"),
            "_native_batch_norm_legit_functional.default",
            "_batch_norm_with_update_functional.default",
        ),
    ),
)


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_number_put_in_it_is_the_rule_of_the_number(kind: str) -> None:
    lost: set[str] = set()
    for sample in samples_by_kind()[kind]:
        rule = asked(sample.call)
        for each in opened(sample, rule) if rule else ():
            lost |= check(each, rule)
    assert lost == {loss.what for loss in LOSSES if kind.removeprefix("aten.") in loss.kinds}


BATCH, LENGTH, PAST = Size("batch"), Size("length"), Size("past")
KEYS = add(PAST, LENGTH)
X = (BATCH, LENGTH, 64)
SCORES = (BATCH, 4, LENGTH, KEYS)

Shapes = Sequence[Sequence[IntExpr]]

NEEDED: Sequence[tuple[str, str, Shapes, Shapes, Mapping[str, Arg]]] = (
    (
        "view.default",
        "(v0 v1) v2 -> v0 v1 v2; v0 v1 v2",
        [(multiply(BATCH, LENGTH), 64)],
        [X],
        {"size": X},
    ),
    (
        "view.default",
        "v0 v1 (v2 v3) -> v0 v1 v2 v3; v0 v1 v2 v3",
        [X],
        [(BATCH, LENGTH, 4, 16)],
        {"size": (BATCH, LENGTH, 4, 16)},
    ),
    (
        "expand.default",
        "1 i3 -> i0 i1 i2 i3; i3 i0 i2",
        [(1, KEYS)],
        [(BATCH, 1, LENGTH, KEYS)],
        {"size": (BATCH, 1, LENGTH, KEYS)},
    ),
    (
        "repeat.default",
        "i1 i2 -> r0 (r1 i1) (r2 i2); i1 i2 r0",
        [(8, 64)],
        [(BATCH, 8, 64)],
        {"repeats": (BATCH, 1, 1)},
    ),
    ("squeeze.dim", "i0 1 i2 -> i0 i2; i0 i2", [(BATCH, 1, 64)], [(BATCH, 64)], {"dim": 1}),
    (
        "slice.Tensor",
        "i0 s0 -> i0 r0; ",
        [(1, 512)],
        [(1, LENGTH)],
        {"dim": 1, "start": 0, "end": LENGTH},
    ),
    (
        "slice.Tensor",
        "i0 s0 -> i0 r0; i0",
        [(64, 512)],
        [(64, LENGTH)],
        {"dim": 1, "start": LENGTH - PAST},
    ),
    ("slice.Tensor", "i0 s0 i2 -> i0 r0 i2; i0 i2", [X], [(BATCH, 1, 64)], {"dim": 1, "start": -1}),
    (
        "slice.Tensor",
        "i0 (s0 e) -> i0 (r0 e); i0 e",
        [(BATCH, LENGTH * 2)],
        [X[:2]],
        {"dim": 1, "start": LENGTH},
    ),
    ("select.int", "i0 i1 i2 -> i0 i2; i0 i1 i2", [X], [(BATCH, 64)], {"dim": 1, "index": -1}),
    (
        "select.int",
        "i0 i1 i2 -> i0 i2; i0 i2",
        [X],
        [(BATCH, 64)],
        {"dim": 1, "index": LENGTH - PAST},
    ),
    (
        "split.Tensor",
        "i0 (s0 e) -> i0 (r0 e), i0 (r1 e); i0 e",
        [(BATCH, LENGTH * 2)],
        [X[:2]] * 2,
        {"split_size": LENGTH, "dim": 1},
    ),
    (
        "cat.default",
        "i0 s0 i2, i0 s1 i2 -> i0 r0 i2; i0 i2",
        [(BATCH, PAST, 64), X],
        [(BATCH, KEYS, 64)],
        {"dim": 1},
    ),
    (
        "cat.default",
        "(s0 e) i1 i2, (s1 e) i1 i2 -> (r0 e) i1 i2; e i1 i2 r0",
        [X, X],
        [(BATCH * 2, LENGTH, 64)],
        {},
    ),
    (
        "stack.default",
        "i0 i1 i2, i0 i1 i2 -> i0 i1 n i2; i0 i1 i2",
        [X, X],
        [(BATCH, LENGTH, 2, 64)],
        {"dim": 2},
    ),
    ("constant_pad_nd.default", "i0 x1 -> i0 i1; i0", [X[:2]], [(BATCH, KEYS)], {"pad": (0, PAST)}),
    (
        "full.default",
        "-> i0 i1 i2 i3; i0 i2 i3",
        [],
        [(BATCH, 1, LENGTH, LENGTH)],
        {"size": (BATCH, 1, LENGTH, LENGTH)},
    ),
    ("arange.default", "-> i0; ; start: i0", [], [(LENGTH,)], {"end": LENGTH}),
    ("arange.start", "-> i0; i0", [], [(LENGTH,)], {"start": PAST, "end": KEYS}),
    ("triu.default", "r c -> r c; r c", [(LENGTH, KEYS)], [(LENGTH, KEYS)], {"diagonal": PAST + 1}),
    ("diagonal.default", "i0 i1 -> i0; ; triangles: i0 i1", [(LENGTH, LENGTH)], [(LENGTH,)], {}),
    ("sum.dim_IntList", "i0 i1 i2 -> i0 i2; i0 i1 i2", [X], [(BATCH, 64)], {"dim": (1,)}),
    ("mean.dim", "i0 i1 i2 -> i0 i2; i0 i2", [X], [(BATCH, 64)], {"dim": (1,)}),
    ("mean.dim", "i0 i1 i2 -> i0 i1; i0 i1; sum: i0 i1 i2", [X], [X[:2]], {"dim": (2,)}),
    ("argmax.default", "i0 i1 i2 -> i0 i1; i0 i1; first: i0 i1 i2", [X], [X[:2]], {"dim": -1}),
    ("argmax.default", "i0 i1 i2 -> i0 i2; i0 i2; first: i0 i1 i2", [X], [(BATCH, 64)], {"dim": 1}),
    (
        "_softmax.default",
        "i0 i1 i2 i3 -> i0 i1 i2 i3; i0 i1 i2; reduced: i0 i1 i2 i3",
        [SCORES],
        [SCORES],
        {"dim": -1},
    ),
    ("cumsum.default", "i0 i1 -> i0 i1; i0", [X[:2]], [X[:2]], {"dim": 1}),
    (
        "topk.default",
        "i0 i1 i2 -> i0 i1 r2, i0 i1 r2; i0 i1",
        [X],
        [(BATCH, LENGTH, 5)] * 2,
        {"k": 5},
    ),
    ("sort.default", "i0 i1 -> i0 i1, i0 i1; i0", [X[:2]], [X[:2]] * 2, {}),
    (
        "native_layer_norm.default",
        "i0 i1 i2, i2 -> i0 i1 i2, i0 i1 1; i0 i1; moments: i0 i1 i2",
        [X, (64,)],
        [X, (*X[:2], 1)],
        {"normalized_shape": (64,)},
    ),
    ("embedding.default", "v e, b0 b1 -> b0 b1 e; v e b0 b1", [(100, 64), X[:2]], [X], {}),
    (
        "index_select.default",
        "i0 i1 i2, j -> i0 j i2; i0 i1 i2 j",
        [X, (PAST,)],
        [(BATCH, PAST, 64)],
        {"dim": 1},
    ),
    (
        "gather.default",
        "i0 s0_1 i2, i0 s1_1 i2 -> i0 s1_1 i2; i0 s0_1 i2 s1_1",
        [X, (BATCH, PAST, 64)],
        [(BATCH, PAST, 64)],
        {"dim": 1},
    ),
)
"""What an op is called with, and the text of its rule; what may be split, by its body too."""

OPERANDS: Mapping[str, Sequence[str]] = {
    "embedding.default": ("weight", "indices"),
    "native_layer_norm.default": ("input", "weight"),
    "index_select.default": ("self", "index"),
    "gather.default": ("self", "index"),
}


def described(kind: str, operands: Shapes, results: Shapes, args: Mapping[str, Arg]) -> str:
    names = OPERANDS.get(kind, ("self",) if len(operands) == 1 else ())
    tensors: dict[str, Arg] = {name: Ref("x") for name in names}
    sides = ([TensorType(tuple(shape), "f32") for shape in side] for side in (operands, results))
    call = OpCall(f"aten.{kind}", {**tensors, **args}, *map(tuple, sides))
    rule = RULES[call.kind](call)
    assert rule is not None
    bodies = (f"; {body.name}: {' '.join(body.rule.splittable)}" for body in rule.bodies)
    return f"{rule}; {' '.join(rule.splittable)}{''.join(bodies)}"


@pytest.mark.parametrize(("kind", "expected", "operands", "results", "args"), NEEDED)
def test_what_transformers_need_is_split(
    kind: str, expected: str, operands: Shapes, results: Shapes, args: Mapping[str, Arg]
) -> None:
    assert described(kind, operands, results, args) == expected
