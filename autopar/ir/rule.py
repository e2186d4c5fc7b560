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

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autopar.ir.program import Arg, Op, Value

Dims = tuple[tuple[str, ...], ...]
"""The factors, major to minor, of each dimension of a tensor. `()` is a dimension of size 1."""

ALL_MONOIDS = frozenset(("sum", "max", "min", "prod", "any", "all"))


class RuleError(ValueError):
    """A rule contradicts itself or the shapes it is applied to: a defect of the rule."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of an operand or result."""

    shape: tuple[int, ...]
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


@dataclass(frozen=True, slots=True)
class Linear:
    """Operands that may be pending *together*, the other operands not, so that results are.

    `add` has Linear({0, 1}); `mul` has Linear({0}) and Linear({1}).
    """

    operands: frozenset[int]
    monoids: frozenset[str] = frozenset(("sum",))


@dataclass(frozen=True, slots=True)
class Sizes:
    """A list argument that becomes, per entry, a product of local factor sizes.

    An entry that is an integer is kept. Used for the sizes of views, expands and creation ops.
    """

    entries: tuple[tuple[str, ...] | int, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A scalar argument that becomes the product of local factor sizes, times `scale`."""

    factors: tuple[str, ...]
    scale: int = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """A scalar argument that becomes `base + scale * (first index of the factor's local block)`.

    With `end`, the index just behind the block. `arange` uses both.
    """

    factor: str
    base: int = 0
    scale: int = 1
    end: bool = False


LocalArg = Sizes | Size | Offset


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
            from a result: a split leaves that result pending.
        indexed: Factor addressed by the values of an index operand -> the op that computes a
            shard: it takes the first index of the shard's block as an extra argument `offset`.
        linear: How the op commutes with pending reductions of its operands.
        local: Arguments that depend on the shard.
        bodies: Alternative bodies.
        work: Floating-point operations per point of the iteration space.
    """

    sizes: Mapping[str, int]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    whole: frozenset[str] = frozenset()
    reduce: Mapping[tuple[str, int], str] = field(default_factory=dict)
    indexed: Mapping[str, str] = field(default_factory=dict)
    linear: tuple[Linear, ...] = ()
    local: Mapping[str, LocalArg] = field(default_factory=dict)
    bodies: tuple[Body, ...] = ()
    work: int = 1

    @cached_property
    def flat(self) -> frozenset[str]:
        """Factors that a shard must hold as one contiguous block (one sub-dimension)."""
        offsets = {arg.factor for arg in self.local.values() if isinstance(arg, Offset)}
        return frozenset(offsets) | frozenset(self.indexed)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """The factors that may be split, by the op itself or by one of its bodies."""
        return tuple(name for name in self.sizes if name not in self.whole and self.sizes[name] > 1)

    def body(self, name: str) -> Body | None:
        """Returns an alternative body by name; None for the op itself (`""`)."""
        return next((body for body in self.bodies if body.name == name), None)

    def under(self, body: str) -> Rule:
        """Returns the rule that holds if the op is computed by this body (`""`: by itself)."""
        chosen = self.body(body)
        return chosen.rule if chosen else self

    def __str__(self) -> str:
        sides = (
            ", ".join(_dims_str(dims) for dims in side) for side in (self.operands, self.results)
        )
        return " -> ".join(sides)


def make_rule(
    text: str,
    call: OpCall,
    *,
    sizes: Mapping[str, int] | None = None,
    whole: Sequence[str] = (),
    reduce: Mapping[str, str] | Mapping[tuple[str, int], str] | None = None,
    indexed: Mapping[str, str] | None = None,
    linear: Sequence[Linear] = (),
    local: Mapping[str, LocalArg] | None = None,
    bodies: Sequence[Body] = (),
    work: int = 1,
) -> Rule:
    """Parses a rule like `m k, k n -> m n` for the shapes of one call.

    Args:
        text: Operands and results, separated by commas, with `->` between them. A dimension is a
            factor's name, `(a b)` for several factors, or `1`. `*b` matches any number of
            dimensions, the same number everywhere.
        call: Gives the shapes.
        sizes: Sizes of factors that occur only within compound dimensions.
        reduce: Monoid of each factor that is absent from a result, or of a (factor, result) pair.

    The other arguments are those of `Rule`. `whole` may name `*b` too.

    Raises:
        RuleError: If the text does not fit the shapes, or a splittable factor is absent from a
            result and `reduce` does not say how.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise RuleError(f"rule {text!r} has no '->'")
    operands = _expand([_parse_tensor(t, text) for t in _tensors(left)], call.operands, text)
    results = _expand([_parse_tensor(t, text) for t in _tensors(right)], call.results, text)
    return build_rule(
        call,
        operands,
        results,
        sizes=sizes,
        whole=whole,
        reduce=reduce,
        indexed=indexed,
        linear=linear,
        local=local,
        bodies=bodies,
        work=work,
    )


def build_rule(
    call: OpCall,
    operands: Sequence[Dims],
    results: Sequence[Dims],
    *,
    sizes: Mapping[str, int] | None = None,
    whole: Sequence[str] = (),
    reduce: Mapping[str, str] | Mapping[tuple[str, int], str] | None = None,
    indexed: Mapping[str, str] | None = None,
    linear: Sequence[Linear] = (),
    local: Mapping[str, LocalArg] | None = None,
    bodies: Sequence[Body] = (),
    work: int = 1,
) -> Rule:
    """Returns a rule from the factors of each dimension; arguments and errors as `make_rule`."""
    known = _infer_sizes(call, (*operands, *results), dict(sizes or {}))
    closed = _close_whole(whole, known)
    full_reduce = _full_reduce(call, results, known, closed, reduce or {})
    return Rule(
        sizes=known,
        operands=tuple(operands),
        results=tuple(results),
        whole=closed,
        reduce=full_reduce,
        indexed=dict(indexed or {}),
        linear=tuple(linear),
        local=dict(local or {}),
        bodies=tuple(bodies),
        work=work,
    )


_TOKEN = re.compile(r"\(([^()]*)\)|(\*?[A-Za-z_]\w*)|(1)|(\S)")


def _tensors(side: str) -> list[str]:
    return [part.strip() for part in side.split(",")] if side.strip() else []


def _parse_tensor(text: str, rule: str) -> Dims:
    dims: list[tuple[str, ...]] = []
    for match in _TOKEN.finditer(text):
        compound, name, one, stray = match.groups()
        if stray:
            raise RuleError(f"rule {rule!r}: unexpected {stray!r} in {text!r}")
        dims.append(tuple(compound.split()) if compound is not None else (name,) if name else ())
        del one
    return tuple(dims)


def _expand(tensors: list[Dims], types: Sequence[TensorType], rule: str) -> list[Dims]:
    """Replaces `*b` by `b0 b1 ...`, as many as each tensor's rank leaves."""
    if len(tensors) != len(types):
        raise RuleError(f"rule {rule!r} is for {len(tensors)} tensors, there are {len(types)}")
    expanded: list[Dims] = []
    for dims, tensor in zip(tensors, types, strict=True):
        stars = [at for at, dim in enumerate(dims) if len(dim) == 1 and dim[0].startswith("*")]
        count = len(tensor.shape) - len(dims) + len(stars)
        if len(stars) > 1 or count < 0 or (count > 0 and not stars):
            raise RuleError(f"rule {rule!r}: {_dims_str(dims)} does not fit {list(tensor.shape)}")
        if stars:
            at = stars[0]
            name = dims[at][0][1:]
            dims = (*dims[:at], *((f"{name}{i}",) for i in range(count)), *dims[at + 1 :])
        expanded.append(dims)
    return expanded


def _infer_sizes(call: OpCall, tensors: Sequence[Dims], known: dict[str, int]) -> dict[str, int]:
    pairs = [
        (dim, size)
        for dims, tensor in zip(tensors, (*call.operands, *call.results), strict=True)
        for dim, size in zip(dims, tensor.shape, strict=True)
    ]
    order = list(dict.fromkeys(name for dim, _ in pairs for name in dim))
    for dim, size in sorted(pairs, key=lambda pair: len(pair[0])):
        unknown = [name for name in dim if name not in known]
        product = 1
        for name in dim:
            product *= known.get(name, 1)
        if len(unknown) == 1 and product and size % product == 0:
            known[unknown[0]] = size // product
        elif unknown:
            raise RuleError(f"{call.kind}: the sizes of {unknown} must be given")
        elif product != size:
            raise RuleError(f"{call.kind}: factors {dim} give {product}, the dimension has {size}")
    return {name: known[name] for name in (*order, *(n for n in known if n not in order))}


def _close_whole(whole: Sequence[str], sizes: Mapping[str, int]) -> frozenset[str]:
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
    sizes: Mapping[str, int],
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


def _dims_str(dims: Dims) -> str:
    return " ".join(
        dim[0] if len(dim) == 1 else f"({' '.join(dim)})" if dim else "1" for dim in dims
    )
