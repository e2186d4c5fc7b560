"""The factor rule: the one declarative description of an op.

A rule names the op's iteration dimensions, its *factors*, and says which dimension of which
operand and result each of them indexes:

    m k, k n -> m n          aten.mm: k is in no result, a reduction
    (b s) d -> b s d         a view: a dimension made of several factors, major to minor
    v e, *b -> *b e          aten.embedding: `*b` stands for any number of dimensions
    m 1 -> m n               an operand's dimension of size 1 that is broadcast

Everything that autopar knows about an op follows from its rule: what completion may split alike,
what a split computes locally and leaves pending, what it costs, and how it is tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autopar.ir.dtypes import INEXACT
from autopar.ir.expr.expression import IntExpr, exact_quotient, planned, prod, shape_str
from autopar.ir.expr.facts import can_exceed
from autopar.ir.program import Arg, Op, Value, refs
from autopar.ir.rules.local_arg import LocalArg, Offset, parts_of
from autopar.ir.rules.text import Dims as Dims
from autopar.ir.rules.text import RuleError as RuleError
from autopar.ir.rules.text import dims_str, parse_rule
from autopar.ir.rules.window import Window

ALL_MONOIDS = frozenset(("sum", "max", "min", "prod", "any", "all"))

SAME = "same"
"""In `Rule.reduce`: however the factor is split, every part computes the whole result."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of an operand or result."""

    shape: tuple[IntExpr, ...]
    dtype: str


@dataclass(frozen=True)
class OpCall:
    """What a rule is a function of: the op with its attributes and the types around it.

    Attributes:
        kind: The ATen overload.
        args: Arguments by schema name; those equal to the schema's default are absent.
        operands: Types of the tensors read, in the order of `Op.operands`.
        results: Types of the tensors produced.
    """

    kind: str
    args: Mapping[str, Arg]
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    @cached_property
    def positions(self) -> Mapping[str, tuple[int, ...]]:
        """The positions in `operands` of the tensors that each argument names; () if none."""
        found: dict[str, tuple[int, ...]] = {}
        at = 0
        for name, arg in self.args.items():
            count = sum(1 for _ in refs(arg))
            found[name] = tuple(range(at, at + count))
            at += count
        return found

    def tensor(self, name: str) -> TensorType | None:
        """Returns the type of the tensor that an argument names, None if it names none."""
        at = self.positions.get(name, ())
        return self.operands[at[0]] if at else None

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns a boolean argument."""
        return bool(self.args.get(name, default))

    def integer(self, name: str, default: int) -> int:
        """Returns an integer argument.

        Raises:
            RuleError: If the argument is something else.
        """
        arg = self.args.get(name, default)
        if isinstance(arg, bool) or not isinstance(arg, int):
            raise RuleError(f"{self.kind}: argument {name} is {arg!r}, not an integer")
        return arg

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Returns an argument that is a list of integers; a single one counts as a list."""
        arg = self.args.get(name)
        if arg is None:
            return tuple(default)
        items = arg if isinstance(arg, tuple) else (arg,)
        if not all(isinstance(item, int) for item in items):
            raise RuleError(f"{self.kind}: argument {name} is {arg!r}, not a list of integers")
        return tuple(item for item in items if isinstance(item, int))


def as_number(size: IntExpr) -> int:
    """Returns a size that a rule can tell only as a number.

    Raises:
        RuleError: If it is open.
    """
    if not isinstance(size, int):
        raise RuleError(f"the size {size} is open, and the rule depends on it")
    return size


@dataclass(frozen=True, slots=True)
class Linear:
    """Operands that may be pending *together*, the other operands not, so that results are.

    `add` has Linear({0, 1}); `mul` has Linear({0}) and Linear({1}).
    """

    operands: frozenset[int]
    monoids: frozenset[str] = frozenset(("sum",))


@dataclass(frozen=True)
class Shard:
    """The op that computes a shard of an op along an indexed factor.

    Attributes:
        kind: It takes the op's arguments and the first index of the shard's block.
        args: What it takes besides, or in the place of the op's.
        start: The name of the argument that takes the first index.
        base: The first index of the op itself, where that is a shard already.
    """

    kind: str
    args: Mapping[str, Arg] = field(default_factory=dict)
    start: str = "offset"
    base: IntExpr = 0


@dataclass(frozen=True)
class Body:
    """An alternative way to compute an op, as a decomposition into ops that have rules themselves.

    Attributes:
        name: Short name, unique among the op's bodies.
        rule: The rule of the whole decomposition. It has the factors of the op's own rule, but may
            split more of them.
        expand: (op, values, fresh) -> (ops, new values). The last ops produce `op.results`; values
            between get names from `fresh(hint)`. All shapes are global.
    """

    name: str
    rule: Rule
    expand: Callable[
        [Op, Mapping[str, Value], Callable[[str], str]], tuple[Sequence[Op], Sequence[Value]]
    ]


@dataclass(frozen=True)
class Rule:
    """How an op's operands and results are indexed by its factors.

    Attributes:
        sizes: Size of each factor, in order of first appearance.
        operands: Per tensor operand, the factors of each dimension.
        results: The same per result.
        whole: Factors that must not be split (the sorted dimension of a sort).
        reduce: (factor, result position) -> monoid, for every splittable factor that is absent
            from a result: a split leaves that result pending, or, if it is `SAME`, complete.
        once: Factor that is reduced -> operands that every part of it would add. If it is split,
            they are consumed pending over the same axes, so that they count once.
        indexed: Factor addressed by the values of an index operand -> the op that computes a
            shard.
        numbered: Factor whose elements an op must know the numbers of -> the op that computes a
            shard; where an indexed factor may be split too, it is the same op.
        linear: How the op commutes with pending reductions of its operands.
        windows: Factors that are read through a window of another one, which is in the results
            or reduced. They are whole themselves: where that other is split, so are they, over the
            same axes, and what a window covers beyond its own block is fetched.
        local: Arguments that depend on the shard.
        bodies: Alternative bodies.
        work: Floating-point operations per point of the iteration space. A fraction where the
            factors span more points than are computed, 0 for ops that only move data.
        passed_over: Operands of which next to nothing is read: their shape, or what few targets
            name.
        unscaled: Factors that operations are not counted along, however they are split: the row
            that is searched by halving it.
    """

    sizes: Mapping[str, IntExpr]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    whole: frozenset[str] = frozenset()
    reduce: Mapping[tuple[str, int], str] = field(default_factory=dict)
    once: Mapping[str, frozenset[int]] = field(default_factory=dict)
    indexed: Mapping[str, Shard] = field(default_factory=dict)
    numbered: Mapping[str, Shard] = field(default_factory=dict)
    linear: tuple[Linear, ...] = ()
    windows: Mapping[str, Window] = field(default_factory=dict)
    local: Mapping[str, LocalArg] = field(default_factory=dict)
    bodies: tuple[Body, ...] = ()
    work: float = 1
    passed_over: frozenset[int] = frozenset()
    unscaled: frozenset[str] = frozenset()

    @cached_property
    def flat(self) -> frozenset[str]:
        """Factors that a shard must hold as one contiguous block (one sub-dimension)."""
        parts = (part for arg in self.local.values() for part in parts_of(arg))
        offsets = (part.factors for part in parts if isinstance(part, Offset))
        read = (window.of for window in self.windows.values())
        return frozenset((*self.indexed, *self.numbered, *read)).union(*offsets)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """The factors that may be split under this rule; a body's rule may split more."""
        more = (name for name, size in self.sizes.items() if can_exceed(size, 1))
        return tuple(name for name in more if name not in self.whole)

    def body(self, name: str) -> Body | None:
        """Returns an alternative body by name; None for the op itself (`""`)."""
        return next((body for body in self.bodies if body.name == name), None)

    def under(self, body: str) -> Rule:
        """Returns the rule that holds if the op is computed by this body (`""`: by itself)."""
        chosen = self.body(body)
        return chosen.rule if chosen else self

    def __str__(self) -> str:
        sides = (
            ", ".join(dims_str(dims) for dims in side) for side in (self.operands, self.results)
        )
        return " -> ".join(sides).strip()


def make_rule(
    text: str,
    call: OpCall,
    *,
    sizes: Mapping[str, IntExpr] | None = None,
    whole: Sequence[str] = (),
    reduce: Mapping[str, str] | Mapping[tuple[str, int], str] | None = None,
    once: Mapping[str, frozenset[int]] | None = None,
    indexed: Mapping[str, str | Shard] | None = None,
    linear: Sequence[Linear] = (),
    windows: Mapping[str, Window] | None = None,
    local: Mapping[str, LocalArg] | None = None,
    bodies: Sequence[Body] = (),
    work: float = 1,
    aside: Sequence[str] = (),
    unscaled: Sequence[str] = (),
) -> Rule:
    """Parses a rule like `m k, k n -> m n` for the shapes of one call.

    Args:
        text: Operands and results, separated by commas, with `->` between them. A dimension is a
            factor's name, `(a b)` for several factors, or `1`. `*b` matches any number of
            dimensions, the same number everywhere.
        call: Gives the shapes.
        sizes: Sizes of factors that occur only within compound dimensions.
        reduce: Monoid of each factor that is absent from a result, or of a (factor, result) pair.
        indexed: The op that computes a shard, by its kind alone where it takes no more arguments.
        aside: Factors that `work` doesn't grow with: it is per point of the others.

    The other arguments are those of `Rule`. `whole` may name `*b` too.

    Raises:
        RuleError: If the text does not fit the shapes, or a splittable factor is absent from a
            result and `reduce` does not say how.
    """
    operands, results = parse_rule(
        text,
        tuple(len(tensor.shape) for tensor in call.operands),
        tuple(len(tensor.shape) for tensor in call.results),
    )
    return build_rule(
        call,
        operands,
        results,
        sizes=sizes,
        whole=whole,
        reduce=reduce,
        once=once,
        indexed=indexed,
        linear=linear,
        windows=windows,
        local=local,
        bodies=bodies,
        work=work,
        aside=aside,
        unscaled=unscaled,
    )


def build_rule(
    call: OpCall,
    operands: Sequence[Dims],
    results: Sequence[Dims],
    *,
    sizes: Mapping[str, IntExpr] | None = None,
    whole: Sequence[str] = (),
    reduce: Mapping[str, str] | Mapping[tuple[str, int], str] | None = None,
    once: Mapping[str, frozenset[int]] | None = None,
    indexed: Mapping[str, str | Shard] | None = None,
    numbered: Mapping[str, Shard] | None = None,
    linear: Sequence[Linear] = (),
    windows: Mapping[str, Window] | None = None,
    local: Mapping[str, LocalArg] | None = None,
    bodies: Sequence[Body] = (),
    work: float = 1,
    aside: Sequence[str] = (),
    passed_over: Sequence[int] = (),
    unscaled: Sequence[str] = (),
) -> Rule:
    """Returns a rule from the factors of each dimension; arguments and errors as `make_rule`."""
    known = _infer_sizes(call, (*operands, *results), dict(sizes or {}))
    closed = _close_whole((*whole, *(windows or ())), known)
    full_reduce = _full_reduce(call, results, known, closed, reduce or {})
    return Rule(
        sizes=known,
        operands=tuple(operands),
        results=tuple(results),
        whole=closed,
        reduce=full_reduce,
        once=dict(once or {}),
        indexed={
            factor: Shard(shard) if isinstance(shard, str) else shard
            for factor, shard in (indexed or {}).items()
        },
        numbered=dict(numbered or {}),
        linear=tuple(row for row in linear if _survives(call, row)),
        windows=dict(windows or {}),
        local=dict(local or {}),
        bodies=tuple(bodies),
        work=work / math.prod(max(1, planned(known.get(factor, 1))) for factor in aside),
        passed_over=frozenset(passed_over),
        unscaled=frozenset(unscaled),
    )


def _infer_sizes(
    call: OpCall, tensors: Sequence[Dims], known: dict[str, IntExpr]
) -> dict[str, IntExpr]:
    order: dict[str, None] = {}
    compound: list[tuple[tuple[str, ...], IntExpr]] = []
    for dims, tensor in zip(tensors, (*call.operands, *call.results), strict=True):
        if len(dims) != len(tensor.shape):
            raise RuleError(
                f"{call.kind}: {dims_str(dims)!r} doesn't fit {shape_str(tensor.shape)}"
            )
        for dim, size in zip(dims, tensor.shape, strict=True):
            if len(dim) != 1:
                order.update(dict.fromkeys(dim))
                compound.append((dim, size))
                continue
            order[dim[0]] = None
            if known.setdefault(dim[0], size) != size:
                raise RuleError(
                    f"{call.kind}: factor {dim[0]} is {known[dim[0]]}, the dimension has {size}"
                )
    for dim, size in sorted(compound, key=lambda pair: len(pair[0])):
        _infer_compound(call, dim, size, known)
    return {name: known[name] for name in (*order, *(n for n in known if n not in order))}


def _infer_compound(
    call: OpCall, dim: tuple[str, ...], size: IntExpr, known: dict[str, IntExpr]
) -> None:
    unknown = [name for name in dim if name not in known]
    product = prod(known.get(name, 1) for name in dim)
    rest = exact_quotient(size, product)
    if len(unknown) == 1 and rest is not None:
        known[unknown[0]] = rest
    elif unknown:
        raise RuleError(f"{call.kind}: the sizes of {unknown} must be given")
    elif product != size:
        raise RuleError(f"{call.kind}: factors {dim} give {product}, the dimension has {size}")


def _close_whole(whole: Sequence[str], sizes: Mapping[str, IntExpr]) -> frozenset[str]:
    names: set[str] = set()
    for name in whole:
        if name.startswith("*"):
            prefix = name[1:]
            names.update(n for n in sizes if n.startswith(prefix) and n[len(prefix) :].isdigit())
        elif name in sizes:
            names.add(name)
    return frozenset(names)


def _full_reduce(
    call: OpCall,
    results: Sequence[Dims],
    sizes: Mapping[str, IntExpr],
    whole: frozenset[str],
    given: Mapping[str, str] | Mapping[tuple[str, int], str],
) -> dict[tuple[str, int], str]:
    by_key: dict[str | tuple[str, int], str] = dict(given)  # type: ignore[arg-type]
    full: dict[tuple[str, int], str] = {}
    for position, dims in enumerate(results):
        present = {name for dim in dims for name in dim}
        for name in sizes:
            if name in present or name in whole:
                continue
            monoid = by_key.get((name, position), by_key.get(name))
            if monoid is None:
                raise RuleError(
                    f"{call.kind}: factor {name} is absent from result {position}; name its"
                    " reduction or make it whole"
                )
            full[name, position] = monoid
    return full


def _survives(call: OpCall, row: Linear) -> bool:
    """Whether pending pieces may be reduced after the op: they exist, and no integer turns float.

    A sum of integers may wrap around, and the identity of max differs between integer dtypes.
    """
    if any(at >= len(call.operands) for at in row.operands):
        return False
    dtypes = {call.operands[at].dtype for at in row.operands}
    produced = {result.dtype for result in call.results}
    both = dtypes | produced
    return len(both) == 1 or both <= INEXACT
