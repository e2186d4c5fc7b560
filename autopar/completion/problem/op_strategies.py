"""Op strategies: a rule with everything that completion derives from it, shared by equal ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.completion.problem.body import body_ops
from autopar.completion.problem.space import Form, Need, Space
from autopar.completion.problem.splits import Key, Splits
from autopar.completion.problem.waits import Waits
from autopar.cost import least_op_seconds, op_seconds
from autopar.cost.part import part_seconds
from autopar.cost.windows import WindowWay, window_ways
from autopar.ir.dims import DimLayout, SubDim, dim_axes, dim_size, factorize_dim, normalize_dim
from autopar.ir.dtypes import DTYPE_BYTES, INDEXES
from autopar.ir.expr.expression import IntExpr, planned, prod
from autopar.ir.expr.facts import can_exceed
from autopar.ir.ops import rule_of
from autopar.ir.ops.loops import REDUCE, executions
from autopar.ir.ops.shape.view import FREE
from autopar.ir.program import Op, OpDist, Pending, Ref, Value
from autopar.ir.rules.distribution import pending_once, shard_call
from autopar.ir.rules.rule import SAME, Dims, Rule, TensorType
from autopar.ir.rules.window import Window


@dataclass(frozen=True, slots=True)
class Priced:
    """What a choice takes.

    Attributes:
        seconds: Predicted time of the computation, with what brings its operands from the forms
            that the choice consumes to where they are read.
        own_seconds: The same without what depends on who else reads operands and results.
        left: Forms of results that a body's ops leave otherwise than the choice says, by position.
            A choice doesn't know what the ops within a body can be split along.
        reads: How operands are read that aren't as the choice consumes them, by position.
        reads_again: How a body's ops read its results, by position.
    """

    seconds: float
    own_seconds: float
    left: Mapping[int, Form] = field(default_factory=dict)
    reads: Mapping[int, tuple[Need, ...]] = field(default_factory=dict)
    reads_again: Mapping[int, tuple[Need, ...]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Choice:
    """One way to compute an op; it isn't changed.

    Attributes:
        dist: The choice as the program holds it.
        splits: The same as splits of the op's factors.
        consumed: Form of each operand.
        produced: Form of each result.
        price: Predicts what it takes, which takes long for a body.
        is_plain: Whether it reads its operands as it consumes them.
    """

    dist: OpDist
    splits: Splits
    consumed: tuple[Form, ...]
    produced: tuple[Form, ...]
    price: Callable[[OpDist], Priced]
    is_plain: bool = True
    _priced: Priced | None = None

    @property
    def seconds(self) -> float:
        """Predicted time of the computation, with what brings its operands where they are read."""
        return self._known().seconds

    @property
    def own_seconds(self) -> float:
        """The same without what depends on who else reads operands and results."""
        return self._known().own_seconds

    def reads(self, position: int) -> tuple[Need, ...]:
        """Returns how an operand is read: in the consumed form, through windows, or by a body."""
        needed = self.consumed[position]
        return (needed,) if self.is_plain else self._known().reads.get(position, (needed,))

    def reads_again(self, position: int) -> tuple[Need, ...]:
        """Returns how the ops of a body read a result."""
        return () if self.is_plain else self._known().reads_again.get(position, ())

    def leaves(self, position: int) -> Form:
        """Returns the form in which a result is really left."""
        return self._known().left.get(position, self.produced[position])

    def _known(self) -> Priced:
        if self._priced is None:
            self._priced = self.price(self.dist)
        return self._priced


class Call:
    """What is known about ops with the same kind, arguments and types, which run as often.

    Args:
        calls: The table it is in.
        op: One of the ops.
        values: The values around it.
    """

    def __init__(self, calls: CallTable, op: Op, values: Mapping[str, Value]) -> None:
        self.calls = calls
        self.space = calls.space
        self.operands = tuple(_type(values[name]) for name in op.operands)
        self.results = tuple(_type(values[name]) for name in op.results)
        rule = rule_of(op, values)
        self.has_rule = rule is not None
        self.rule = rule or _opaque(self.operands, self.results)
        self.itemsizes = tuple(DTYPE_BYTES[t.dtype] for t in (*self.operands, *self.results))
        self.example, self.times = (op, values), executions(op)
        self._inner: dict[str, tuple[float, float]] = {}
        self._waits = Waits(self)
        self._suggestions: dict[tuple[int, Form], Splits] = {}
        self._choices: dict[tuple[Splits, tuple[Pending, ...]], Choice | None] = {}

    @cached_property
    def tensors(self) -> tuple[Dims, ...]:
        """The factors of each dimension of the operands and then the results."""
        return (*self.rule.operands, *self.rule.results)

    @cached_property
    def _variants(self) -> tuple[tuple[str, Rule, frozenset[str]], ...]:
        """The op itself and its bodies: (name, rule, factors that may be split)."""
        bodies = [("", self.rule), *((body.name, body.rule) for body in self.rule.bodies)]
        return tuple((name, rule, frozenset(rule.splittable)) for name, rule in bodies)

    @cached_property
    def splittable(self) -> frozenset[str]:
        """The factors that the op, or a body of it, may split."""
        return frozenset().union(*(factors for _, _, factors in self._variants))

    @cached_property
    def windows(self) -> Mapping[Key, Window]:
        """The windows through which the op, or a body of it, reads factors."""
        return {factor: w for _, rule, _ in self._variants for factor, w in rule.windows.items()}

    @cached_property
    def contracted(self) -> frozenset[str]:
        """Factors that the op, or a body of it, sums over and doesn't address by values."""
        return frozenset(
            factor
            for _, rule, factors in self._variants
            for factor in factors
            if factor not in rule.indexed
            and all(
                rule.reduce.get((factor, position)) == "sum"
                for position in range(len(rule.results))
            )
        )

    @cached_property
    def whole(self) -> Choice:
        """The choice in which every process computes everything."""
        taken = tuple(self.space.replicated(t.shape) for t in self.operands)
        made = tuple(self.space.replicated(t.shape) for t in self.results)
        dist = OpDist(self.space.mesh)
        return Choice(dist, self.space.table.none, taken, made, self._priced)

    def suggest(self, position: int, form: Form) -> Splits:
        """Returns the splits of factors that fit a tensor which lies in this form.

        Args:
            position: Position of the tensor among operands and then results.
            form: Its form; what is pending is ignored.
        """
        key = (position, form)
        found = self._suggestions.get(key)
        if found is None:
            found = self._suggestions[key] = self._suggest(position, form)
        return found

    def _suggest(self, position: int, form: Form) -> Splits:
        table = self.space.table
        if not form.splits.items:
            return table.none
        items: dict[Key, DimLayout] = {}
        for number, dim in form.splits.items.items():
            for factor, layout in self._along(self.tensors[position][int(number)], dim).items():
                if factor in self.splittable:
                    items.setdefault(factor, normalize_dim(layout, self.space.mesh))
                elif factor in self.windows and (axes := dim_axes(layout)):
                    read = self.windows[factor].of
                    items.setdefault(read, (SubDim(self.rule.sizes[read], axes),))
        return table.splits_of(
            {factor: dim for factor, dim in items.items() if factor in self.splittable}
        )

    def looked_up(self, splits: Splits) -> Splits:
        """Returns splits with what is looked up split, in the place of what it is looked up in."""
        addressed = [factor for factor in splits.items if self.rows_of(str(factor)) is not None]
        if not addressed:
            return splits
        items = dict(splits.items)
        axes = [axis for factor in addressed for axis in dim_axes(items.pop(factor))]
        rows = self.rows_of(str(addressed[0]))
        assert rows is not None
        if rows in items:
            return splits
        items[rows] = (SubDim(self.rule.sizes[rows], tuple(axes)),)
        return self.space.table.splits_of(items)

    def rows_of(self, factor: str) -> str | None:
        """Returns the major factor of what is looked up in another; None if nothing is.

        That is the first of an index, which can be split. What is written by index isn't meant.
        """
        is_lookup = factor in self.rule.indexed and (factor, 0) in self.rule.reduce
        return self._rows if is_lookup else None

    @cached_property
    def _rows(self) -> str | None:
        kept = {factor for dim in self.rule.results[0] for factor in dim}
        for dims, tensor in zip(self.rule.operands, self.operands, strict=True):
            own = [factor for dim in dims for factor in dim]
            if tensor.dtype in INDEXES and self.rule.indexed.keys().isdisjoint(own):
                rows = [factor for factor in own if factor in kept & self.splittable]
                if rows:
                    return rows[0]
        return None

    def _along(self, factors: tuple[str, ...], dim: DimLayout) -> Mapping[Key, DimLayout]:
        """Returns the layouts of a dimension's factors, axis by axis where all don't fit."""
        table = self.space.table
        sizes = [self.rule.sizes[factor] for factor in factors]
        pieces = factorize_dim(dim, sizes, self.space.mesh)
        if pieces is not None:
            return dict(zip(factors, pieces, strict=True))
        splits = table.none
        for axis in dim_axes(dim):
            alone = table.restrict(dim, (axis,))
            pieces = factorize_dim(alone, sizes, self.space.mesh) if alone != dim else None
            if pieces is not None:
                source = table.splits_of(dict(zip(factors, pieces, strict=True)))
                splits = table.merged(splits, axis, source) or splits
        return splits.items

    def choice(self, splits: Splits, pending: tuple[Pending, ...] = ()) -> Choice | None:
        """Returns the choice with these splits of factors, or None if the op can't be split so."""
        key = (splits, pending)
        if key not in self._choices:
            self._choices[key] = self._choice(splits, pending)
        return self._choices[key]

    def _choice(self, splits: Splits, pending: tuple[Pending, ...]) -> Choice | None:
        if pending:
            return self._with_pending(splits, pending)
        if not splits.items:
            return self.whole
        for name, rule, factors in self._variants:
            if splits.items.keys() <= factors and self._fits(rule, splits):
                ordered = [(f, splits.items[f]) for f in rule.sizes if f in splits.items]
                dist = OpDist(self.space.mesh, tuple(ordered), name)
                return self._derive(dist, splits)
        return None

    def _fits(self, rule: Rule, splits: Splits) -> bool:
        if any(len(splits.items[f]) > 1 for f in rule.flat if f in splits.items):
            return False
        return sum(factor in splits.items for factor in rule.indexed) <= 1

    def _derive(self, dist: OpDist, splits: Splits) -> Choice | None:
        """Returns the choice with the layouts that follow from it.

        These are `distribution.consumed` and `produced`. Here they are put together from the few
        dimensions that are split, which is what makes many candidates affordable.
        """
        rule = self.rule.under(dist.body)
        flowing = [(pending.axis, pending.monoid, pending.operands) for pending in dist.pending]
        read = self._read(rule, splits)
        taken = [
            self._form(
                dims,
                tensor,
                read,
                [(a, m) for a, m, operands in flowing if position in operands]
                + list(pending_once(rule, dist, position).items()),
            )
            for position, (dims, tensor) in enumerate(
                zip(rule.operands, self.operands, strict=True)
            )
        ]
        made = []
        for position, (dims, tensor) in enumerate(zip(rule.results, self.results, strict=True)):
            partial = [(axis, monoid) for axis, monoid, _ in flowing]
            present = {factor for dim in dims for factor in dim}
            for factor in splits.items.keys() - present:
                monoid = rule.reduce[str(factor), position]
                if monoid != SAME:
                    partial.extend((axis, monoid) for axis in dim_axes(splits.items[factor]))
            if len({monoid for _, monoid in partial}) > 1:
                return None
            made.append(self._form(dims, tensor, splits, partial))
        is_plain = not dist.body and not rule.windows
        return Choice(dist, splits, tuple(taken), tuple(made), self._priced, is_plain)

    def _read(self, rule: Rule, splits: Splits) -> Splits:
        """Returns the splits together with those of the factors read through windows."""
        windowed: dict[Key, DimLayout] = {
            factor: (SubDim(rule.sizes[factor], dim_axes(splits.items[window.of])),)
            for factor, window in rule.windows.items()
            if window.of in splits.items and can_exceed(rule.sizes[factor], 1)
        }
        return Splits({**splits.items, **windowed}, splits.places) if windowed else splits

    def _form(
        self, dims: Dims, tensor: TensorType, splits: Splits, partial: Sequence[tuple[str, str]]
    ) -> Form:
        space = self.space
        items: dict[Key, DimLayout] = {}
        for number, factors in enumerate(dims):
            if any(factor in splits.items for factor in factors):
                items[number] = self._dim(factors, splits)
        form = space.of_splits(space.table.splits_of(items), tensor.shape)
        return space.form(form.layout.with_partial(dict(partial))) if partial else form

    def _dim(self, factors: tuple[str, ...], splits: Splits) -> DimLayout:
        if len(factors) == 1:
            return splits.items[factors[0]]
        parts = (splits.items.get(f, (SubDim(self.rule.sizes[f]),)) for f in factors)
        return normalize_dim(tuple(sub for part in parts for sub in part), self.space.mesh)

    def _priced(self, dist: OpDist) -> Priced:
        if dist.body:
            return self.calls.priced_body(self.calls, self, replace(dist, pending=()))
        count, cut = len(self.operands), self.rule.windows
        ways = [window_ways(self.rule, dist, position) if cut else () for position in range(count)]
        own = self.times * self._own_seconds(dist, ways)
        if not any(ways):
            return Priced(own, own)
        types = zip(ways, self.operands, strict=True)
        windows = [self.space.windows(each, t.dtype) if each else None for each, t in types]
        fetched = self.times * sum(each.ways[0][1] for each in windows if each)
        reads = {position: (each,) for position, each in enumerate(windows) if each}
        return Priced(own + fetched, own, reads=reads)

    def _own_seconds(self, dist: OpDist, ways: Sequence[tuple[WindowWay, ...]]) -> float:
        """Returns the seconds of one computation alone, on the rank with the largest part.

        Args:
            dist: The choice, not of a body.
            ways: Per operand the ways to the windows through which it is read, if it is.
        """
        op, values = self.example
        if all(0 in result.shape for result in self.results):
            return 0.0
        # What flows through changes no size.
        dist = replace(dist, pending=()) if dist.pending else dist
        if any(ways) or (dist.factors and shard_call(self.rule, dist)):
            return part_seconds(op, values, self.rule, dist, ways, self.space.evaluator)
        if op.kind in FREE:
            return 0.0
        rule, types = self.rule if self.has_rule else None, (*self.operands, *self.results)
        if op.kind == REDUCE:
            # What is there of the result is read too.
            types = (*self.operands, *types)
            rule = replace(self.rule, operands=(*self.rule.operands, *self.rule.operands))
        return op_seconds(op.kind, rule, dist, types, self.space.cluster)

    def _with_pending(self, splits: Splits, pending: tuple[Pending, ...]) -> Choice | None:
        plain = self.choice(splits)
        return self._derive(replace(plain.dist, pending=pending), splits) if plain else None

    def least_seconds(self, choice: Choice) -> float:
        """Returns seconds that a choice takes at least, without completing a body.

        Of a body the ops, each split over all processes that split it, and until these have heard
        of one another.
        """
        if not choice.dist.body:
            return choice.own_seconds
        return self._computed_seconds(choice) + self._waits.seconds(choice.dist)

    def _computed_seconds(self, choice: Choice) -> float:
        """Returns seconds that the ops of a body take at least."""
        fixed, divided = self._inner_seconds(choice.dist.body)
        axes = tuple(axis for _, dim in choice.dist.factors for axis in dim_axes(dim))
        return fixed + divided / self.space.mesh.axes_size(axes)

    @cached_property
    def divided_seconds(self) -> float:
        """Seconds that the op takes at least: itself, or a body, divided among all processes."""
        own = self.parts_seconds
        if not self.has_rule:
            return self.whole.own_seconds
        start = min(own, self.times * self.space.cluster.launch_seconds)
        ways = [(start, own - start), *(self._inner_seconds(b.name) for b in self.rule.bodies)]
        return min(
            fixed + rest / self.space.mesh.axes_size(self.space.axes) for fixed, rest in ways
        )

    @cached_property
    def parts_seconds(self) -> float:
        """Seconds that all parts of the op take at least together, however it divides itself."""
        own, cluster = self.whole.own_seconds, self.space.cluster
        if not cluster.op_rates:
            return own
        kind, types = self.example[0].kind, (*self.operands, *self.results)
        rule = self.rule if self.has_rule else None
        whole = OpDist(self.space.mesh)
        return min(own, self.times * least_op_seconds(kind, rule, whole, types, cluster))

    def likely_seconds(self, choice: Choice) -> float:
        """Returns about the seconds of a choice, without completing a body.

        What splits what the op itself can't mostly takes a reduction of the rest, unless that is
        left pending.
        """
        dist, mesh = choice.dist, self.space.mesh
        if not dist.body:
            return choice.seconds
        likely = self._computed_seconds(choice)
        axes = tuple(axis for _, dim in dist.factors for axis in dim_axes(dim))
        own = frozenset(self.rule.splittable)
        beyond = [dim for factor, dim in dist.factors if factor not in own]
        reduced = {axis for dim in beyond for axis in dim_axes(dim)}
        pending = {axis for form in choice.produced for axis in form.layout.partial_axes}
        if reduced and reduced.isdisjoint(pending):
            elements = max(planned(prod(t.shape)) for t in (*self.operands, *self.results))
            split = planned(prod(dim_size(dim) for dim in beyond))
            nbytes = elements // split * min(self.itemsizes)
            rest = mesh.axes_size(tuple(axis for axis in axes if axis not in reduced))
            model = self.space.planner.model
            along = sorted(reduced, key=mesh.axis_index)
            likely += self.times * model.all_gather(nbytes // rest, along)
        return max(likely, self.least_seconds(choice))

    def _inner_seconds(self, body: str) -> tuple[float, float]:
        """Returns the seconds of a body's ops on one device: of their starts, and of the rest."""
        known = self._inner.get(body)
        if known is None:
            op, around = self.example
            ops, values = body_ops(self.rule, op, OpDist(self.space.mesh, body=body), around)
            whole = sum(self.calls.call_of(op, values).parts_seconds for op in ops)
            launched = self.times * sum(op.kind not in FREE for op in ops)
            starts = launched * self.space.cluster.launch_seconds
            known = self._inner[body] = starts, whole - starts
        return known

    def rows(self, body: str, monoid: str = "sum") -> list[tuple[int, ...]]:
        """Returns which operands of the op, computed by this body, may be pending together.

        Each way is a row of positions, in order.
        """
        linear = self.rule.under(body).linear
        return [tuple(sorted(row.operands)) for row in linear if monoid in row.monoids]

    def longest_row(self, body: str = "") -> tuple[int, ...]:
        """Returns the row of as many operands as possible that may be pending sums together."""
        return max(self.rows(body), key=len, default=())


class CallTable:
    """The calls of programs over one space.

    Args:
        space: Interns and prices.
        priced_body: Returns what computing a call by a body takes: it has to be completed for that.
    """

    def __init__(
        self, space: Space, priced_body: Callable[[CallTable, Call, OpDist], Priced]
    ) -> None:
        self.space, self.priced_body = space, priced_body
        self._known: dict[tuple[object, ...], Call] = {}

    def call_of(self, op: Op, values: Mapping[str, Value]) -> Call:
        """Returns what all ops have in common that call the same op in the same way."""
        types = tuple((values[name].shape, values[name].dtype) for name in op.operands)
        results = tuple((values[name].shape, values[name].dtype) for name in op.results)
        # As text, because 1, 1.0 and True are equal keys but different arguments.
        key = (op.kind, repr(_without_names(op.args)), types, results, op.times)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Call(self, op, values)
        return found


def _opaque(operands: Sequence[TensorType], results: Sequence[TensorType]) -> Rule:
    """Returns a rule for an op that has none: nothing may be split."""
    sizes: dict[str, IntExpr] = {}
    dims: list[Dims] = []
    for number, tensor in enumerate((*operands, *results)):
        names = [f"t{number}_{dim}" for dim in range(len(tensor.shape))]
        sizes.update(zip(names, tensor.shape, strict=True))
        dims.append(tuple((name,) for name in names))
    count = len(operands)
    return Rule(sizes, tuple(dims[:count]), tuple(dims[count:]), whole=frozenset(sizes))


def _without_names(arg: object) -> object:
    if isinstance(arg, Ref):
        return "%"
    if isinstance(arg, tuple):
        return tuple(_without_names(item) for item in arg)
    return arg


def _type(value: Value) -> TensorType:
    return TensorType(value.global_shape, value.dtype)
