"""Graph: the ops of a function in canonical order, their calls, and what is pinned.

The order depends on the structure (distance from the inputs, then names of results), not on the
order in which the program lists independent ops; so all that follows doesn't either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from autopar.base.errors import AnnotationError
from autopar.completion.problem.op_strategies import Call, CallTable, Choice
from autopar.completion.problem.space import Form, Space
from autopar.completion.problem.splits import Key, Splits
from autopar.ir.dims import DimLayout, SubDim, dim_axes, normalize_dim
from autopar.ir.layout import Layout, Origin
from autopar.ir.ops.loops import behind, depth
from autopar.ir.ops.table import MOVED
from autopar.ir.program import STORED_ROLES, Lifetime, Op, OpDist, Value, times

T = TypeVar("T")


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """An op with its neighbours.

    Attributes:
        index: Position in the graph.
        op: The op.
        call: What it shares with equal ops.
        operands: The values it reads, as positions in the graph.
        results: The values it produces.
        tensors: Both, operands first.
        steady: Whether it depends on no input that changes between calls.
        weights: Positions of the operands that are steady and are contracted with one that is not.
        lifetime: That of the op.
        left_in: That of its results, which of what a loop leaves isn't the op's own.
    """

    index: int
    op: Op
    call: Call
    operands: tuple[int, ...]
    results: tuple[int, ...]
    tensors: tuple[int, ...]
    steady: bool
    weights: tuple[int, ...]
    lifetime: Lifetime
    left_in: Lifetime


class Graph:
    """A function, or the ops of a body, to be completed.

    Attributes:
        space: Interns and prices.
        nodes: In canonical, topological order.
        values: All values.
        pins: Form of each value that is pinned, else None.
        annotated: The values that the user pinned.
        fixed: These, and those that lie as another program over the same storage has them.
        placed: Those whose pin was given a place within its dimension (`completion.place`).
        origins: Why the others are pinned, or lie as they will, by value, where that is known.
        outputs: Positions of the values that are results of the whole.
        aliases: (output, input): the output is the new content of the input, hence lies like it.
        renewed: Those of them that have one shape, so that they share storage.
        kept: The axes along which a value is split only while it is kept (see `keep`).
        settled: Per op, splits that it has whatever its neighbours want.
        decided: The choices of ops that the user pinned.
        lifetimes: The phases of microbatches, with their position in the program's order.
        order: Per node, the position of its op in the program.
    """

    def __init__(
        self,
        space: Space,
        calls: CallTable,
        ops: Sequence[Op],
        values: Mapping[str, Value],
        outputs: Sequence[str] = (),
        aliases: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.space = space
        self.calls = calls
        self.values = list(values.values())
        self.position = {value.name: number for number, value in enumerate(self.values)}
        self.outputs = frozenset(self.position[name] for name in outputs)
        self.pins = [self._pin(value) for value in self.values]
        self.origins = {
            number: value.origin
            for number, value in enumerate(self.values)
            if value.origin is not None and (value.dist is None or _kind(value) == "preset")
        }
        self.fixed = frozenset(
            number
            for number, pin in enumerate(self.pins)
            if pin is not None and number not in self.origins
        )
        self.annotated = frozenset(
            number for number in self.fixed if _kind(self.values[number]) != "inherited"
        )
        self.placed: frozenset[int] = frozenset()
        self.aliases = [(self.position[out], self.position[into]) for out, into in aliases]
        self.renewed = [pair for pair in self.aliases if self._are_alike(*pair)]
        self.kept: dict[int, frozenset[str]] = {}
        self.settled: dict[int, Splits] = {}
        self.steady = [value.role in STORED_ROLES for value in self.values]
        self.producer: list[tuple[Node, int] | None] = [None] * len(self.values)
        self.uses: list[list[tuple[Node, int]]] = [[] for _ in self.values]
        self.nodes = [self._node(index, op) for index, op in enumerate(_canonical(ops))]
        placed = {op.results: index for index, op in enumerate(ops)}
        self.order = [placed[node.op.results] for node in self.nodes]
        in_order = sorted(self.nodes, key=lambda node: self.order[node.index])
        phases = dict.fromkeys(each for node in in_order for each in (node.lifetime, node.left_in))
        self.lifetimes = {lifetime: index for index, lifetime in enumerate(phases)}
        self.decided = {n.index: decision(n) for n in self.nodes if n.op.dist is not None}
        self._derived: dict[Hashable, object] = {}
        self._structure: dict[Hashable, object] = {}
        self._own: dict[Hashable, object] = {}

    def like(self, value: int, other: int, form: Form) -> Form:
        """Returns the form of a value that lies as another one does in its form.

        A dimension in which they differ, as state has that grows, is cut at its own size.
        """
        if self._are_alike(value, other):
            return form
        shapes = self.values[value].global_shape, self.values[other].global_shape
        dims = tuple(
            dim if size == before else (SubDim(size, dim_axes(dim)),)
            for dim, size, before in zip(form.layout.dims, *shapes, strict=True)
        )
        return self.space.form(Layout(self.space.mesh, dims))

    def _are_alike(self, value: int, other: int) -> bool:
        return self.values[value].global_shape == self.values[other].global_shape

    def _pin(self, value: Value) -> Form | None:
        if value.dist is None:
            return None
        if value.dist.mesh != self.space.mesh:
            raise AnnotationError(
                f"%{value.name} is pinned on mesh {value.dist.mesh}, the program is on"
                f" {self.space.mesh} ({value.origin})"
            )
        if problems := value.dist.problems(value.global_shape):
            raise AnnotationError(f"%{value.name} ({value.origin}): {'; '.join(problems)}")
        return self.space.form(value.dist)

    def place(self, pins: Mapping[int, Form]) -> None:
        """Gives pins of the user's a place within the dimensions that they split."""
        for value, form in pins.items():
            self.pins[value] = form
        self.placed |= pins.keys()

    def anew(self) -> Graph:
        """Returns the graph with the same pins, to be given those of a preset.

        It shares the ops and what is derived of them (`once`), and nothing that presets change.
        """
        other = copy(self)
        other.pins, other.origins = list(self.pins), dict(self.origins)
        other.kept, other.settled = dict(self.kept), dict(self.settled)
        other._own = {}
        return other

    def once(self, key: Hashable, derive: Callable[[], T]) -> T:
        """Returns what is derived of the graph, once for all graphs that `anew` makes of it.

        Args:
            key: What is derived, with everything of presets that it depends on.
            derive: Derives it.
        """
        if key not in self._derived:
            self._derived[key] = derive()
        found: T = self._derived[key]  # type: ignore[assignment]
        return found

    def shared(self, make: Callable[[Graph], T]) -> T:
        """Returns what is made of the graph's ops alone, once for all pins of them."""
        return _made(self._structure, make, self)

    def own(self, make: Callable[[Graph], T]) -> T:
        """Returns what is made of this graph with its pins, once."""
        return _made(self._own, make, self)

    def repinned(self, pins: Mapping[int, Form], decided: Mapping[int, Choice]) -> Graph:
        """Returns the graph with more pins of the user's.

        Args:
            pins: By value.
            decided: The choices of ops, by their number.
        """
        other = copy(self)
        other.pins = [pins.get(value, pin) for value, pin in enumerate(self.pins)]
        other.origins = {**self.origins, **dict.fromkeys(pins, Origin("annotated"))}
        other.annotated = self.annotated | pins.keys()
        other.decided = {**self.decided, **decided}
        other._derived, other._own = {}, {}
        return other

    def keep(self, value: int, axis: str) -> None:
        """Says that an axis splits a value while it is kept, not where it is used.

        Forward and backward ops compute as if it were whole along the axis: they gather it, and
        what becomes of it leads none of them to a split. Updates, and ops that read nothing but
        what the program owns (a cast, a transposition), work on the pieces.
        """
        self.kept[value] = self.kept.get(value, frozenset()) | {axis}
        for node, _ in self.uses[value]:
            if node.steady:
                for result in node.results:
                    if axis not in self.kept.get(result, ()):
                        self.keep(result, axis)

    def settle(self, node: Node, axis: str, splits: Splits) -> None:
        """Settles that an op is split along an axis as in these splits, besides what is settled.

        An op that the user pinned stays as it is.
        """
        if node.index in self.decided:
            return
        known = self.settled.get(node.index, self.space.table.none)
        merged = self.space.table.merged(known, axis, splits)
        if merged is not None:
            self.settled[node.index] = merged

    def lent(self, node: Node, value: int, form: Form) -> Form:
        """Returns the form of a value as far as an op may take splits from it."""
        axes = self.kept.get(value)
        if axes is None or node.steady or node.op.phase == "update":
            return form
        splits = form.splits
        for axis in axes:
            splits = self.space.table.without(splits, axis)
        return self.space.of_splits(splits, self.values[value].global_shape)

    def pieced(self, node: Node) -> frozenset[str]:
        """Returns the axes along which an op computes on the pieces in which its operands are kept.

        A cast of a parameter that is gathered for another op had better not be made of that: it
        would be kept whole until the backward pass. A view is no matter (`lifetimes`).
        """
        rule = node.call.rule
        if not node.steady or node.op.phase == "update":
            return frozenset()
        if not rule.work and rule.linear == MOVED:
            return frozenset()
        return frozenset().union(*(self.kept.get(v, frozenset()) for v in node.operands))

    def _node(self, index: int, op: Op) -> Node:
        operands = tuple(self.position[name] for name in op.operands)
        results = tuple(self.position[name] for name in op.results)
        call = self.calls.call_of(
            op, {v.name: v for v in map(self.values.__getitem__, (*operands, *results))}
        )
        steady = all(self.steady[v] for v in operands)
        weights = () if steady else _weights(call, [self.steady[v] for v in operands])
        around = operands + results
        lifetimes = op.lifetime, behind(op).lifetime
        node = Node(index, op, call, operands, results, around, steady, weights, *lifetimes)
        for position, value in enumerate(results):
            self.producer[value] = (node, position)
            self.steady[value] = steady
        for position, value in enumerate(operands):
            self.uses[value].append((node, position))
        return node

    @cached_property
    def kinds_with_bodies(self) -> int:
        """How many different ops have bodies, which it takes long to complete."""
        return len({node.call for node in self.nodes if node.call.rule.bodies})

    @cached_property
    def times_read(self) -> list[int]:
        """How often each value is brought to where it is read, at most."""
        return [max((node.lifetime.times for node, _ in uses), default=1) for uses in self.uses]

    @cached_property
    def depths(self) -> list[int]:
        """In how many loops each value is another one in each iteration."""
        return [depth(made[0].op if made else None) for made in self.producer]

    def times_made(self, value: int, read: Lifetime) -> int:
        """Returns how often a form of a value is made for a lifetime, if it may stay there."""
        return times(read.loops[: self.depths[value]]) if read.loops else 1

    @cached_property
    def itemsizes(self) -> list[int]:
        """Bytes per element of each value."""
        return [value.itemsize for value in self.values]

    def replicated(self, value: int) -> Form:
        """Returns the form in which every process holds all of a value."""
        return self.space.replicated(self.values[value].global_shape)

    def neighbours(self, value: int) -> list[Node]:
        """Returns the ops that produce or read a value."""
        producer = self.producer[value]
        nodes = [producer[0]] if producer else []
        nodes.extend(node for node, _ in self.uses[value])
        return nodes


def decision(node: Node) -> Choice:
    """Returns the choice of an op that is pinned.

    Raises:
        AnnotationError: If the op can't be computed so.
    """
    op, call, dist = node.op, node.call, node.op.dist or OpDist(node.call.space.mesh)
    split: dict[Key, DimLayout] = {
        name: normalize_dim(dim, dist.mesh) for name, dim in dist.factors if dim_axes(dim)
    }
    choice = None
    if split.keys() <= call.splittable and (call.has_rule or not split):
        choice = call.choice(call.space.table.splits_of(split), dist.pending)
    if choice is None or choice.dist.body != dist.body:
        why = f"by {op.origin.detail}" if op.origin and op.origin.detail else "by a pin"
        factors = ", ".join(sorted(call.splittable)) or "none"
        raise AnnotationError(
            f"%{op.results[0]}: {op.kind} at {op.loc} can't be computed as {why}:"
            f" {dist_text(dist)}; factors of it that can be split are {factors}"
        )
    return choice


def dist_text(dist: OpDist) -> str:
    """Returns a choice for messages: `m@dp, k@tp`, `nothing split`."""
    split = [f"{name}@{','.join(axes)}" for name, dim in dist.factors if (axes := dim_axes(dim))]
    split += [f"{p.monoid}@{p.axis} pending" for p in dist.pending]
    split += [f"by body {dist.body!r}"] if dist.body else []
    return ", ".join(split) or "nothing split"


def _made(known: dict[Hashable, object], make: Callable[[Graph], T], graph: Graph) -> T:
    found: T | None = known.get(make)  # type: ignore[assignment]
    if found is None:
        found = make(graph)
        known[make] = found
    return found


def _kind(value: Value) -> str:
    return value.origin.kind if value.origin is not None else ""


def _canonical(ops: Sequence[Op]) -> list[Op]:
    depth: dict[str, int] = {}
    keyed: list[tuple[int, tuple[str, ...], Op]] = []
    for op in ops:
        level = 1 + max((depth.get(name, 0) for name in op.operands), default=0)
        for name in op.results:
            depth[name] = level
        keyed.append((level, op.results, op))
    return [op for _, _, op in sorted(keyed, key=lambda item: item[:2])]


def _weights(call: Call, steady: Sequence[bool]) -> tuple[int, ...]:
    """Returns the steady operands that share a contracted factor with another operand."""
    if True not in steady:
        return ()
    contracted = call.contracted
    if not contracted:
        return ()
    present = [{f for dim in dims for f in dim} & contracted for dims in call.rule.operands]
    moving = frozenset().union(*(p for p, fixed in zip(present, steady, strict=True) if not fixed))
    return tuple(
        position
        for position, fixed in enumerate(steady)
        if fixed and not present[position].isdisjoint(moving)
    )
