"""Why: the chain of reasons from a layout back to what somebody said, or what was cheapest.

Completion notes for every value and op what its layout follows from. Each mesh axis has a chain of
its own: the batch of a value may come from the inputs, its columns from a weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.base.errors import Loc
from autopar.completion.write import LEFT_PENDING
from autopar.ir.layout import Layout, Origin
from autopar.ir.ops import rule_of
from autopar.ir.program import Function, Op, Value
from autopar.ir.rules.distribution import consumed, produced, replicated, split_axes
from autopar.ir.rules.foreign import bare_kind

READERS = "the readers of "
"""In an op's origin, before a value whose readers want the split."""

BY = "by "

NOTED, OPERANDS, READERS_TOO = range(3)
"""From where a split may come: what completion has noted, any operand, any reader of a result."""


@dataclass(frozen=True)
class Reason:
    """One link of a chain.

    Attributes:
        subject: A value, `%x`, or the kind of an op.
        layout: The value's layout, or how the op is computed.
        kind: One of the kinds of origins; all but `implied` end a chain.
        detail: What is known besides.
        loc: The user's line.
    """

    subject: str
    layout: str
    kind: str
    detail: str
    loc: Loc


def reasons(main: Function, value: Value) -> dict[str, tuple[Reason, ...]]:
    """Returns the chains behind a value's layout, by mesh axis.

    The first reason is the value itself. A value that no axis splits has one chain, under "".
    """
    axes = _axes(value.dist)
    if not axes:
        return {"": (_of_value(value, ""),)}
    around = _Around(main)
    return {axis: tuple(_chain(around, value, axis)) for axis in axes}


class _Around:
    """The values of a function with the ops around them."""

    def __init__(self, main: Function) -> None:
        self.values = main.values
        self.producers = main.producers()
        self.consumers = main.consumers()

    def taken(self, op: Op, at: int) -> Layout:
        """Returns the layout in which an op needs an operand."""
        rule, value = rule_of(op, self.values), self.values[op.operands[at]]
        assert op.dist is not None
        if rule is None:
            return replicated(op.dist.mesh, value.global_shape)
        return consumed(rule, op.dist, at)

    def made(self, op: Op, at: int) -> Layout:
        """Returns the layout in which an op leaves a result."""
        rule, value = rule_of(op, self.values), self.values[op.results[at]]
        assert op.dist is not None
        if rule is None:
            return replicated(op.dist.mesh, value.global_shape)
        return produced(rule, op.dist, at)

    def reading(self, name: str, axis: str) -> list[Op]:
        """Returns the ops that need a value split along an axis."""
        readers = self.consumers[name]
        return [op for op in readers if axis in _axes(self.taken(op, op.operands.index(name)))]


def _axes(layout: Layout | None) -> tuple[str, ...]:
    return () if layout is None else (*layout.sharded_axes, *layout.partial_axes)


def _chain(around: _Around, value: Value, axis: str) -> list[Reason]:
    """Returns the shortest chain to something that doesn't follow from anything else.

    What a split was taken over from may have taken it over from somewhere else in turn, so there
    may be several ways. What is noted may go around in a circle, as ops are told by neighbours that
    they told before; then any operand that is split so counts too, and then any reader. Where no
    way has an end, the first step is all that is known.
    """
    for reach in (NOTED, OPERANDS, READERS_TOO):
        queue: list[tuple[Value | Op, ...]] = [(value,)]
        seen = {_key(value)}
        while queue:
            path = queue.pop(0)
            behind = [*_behind(around, path[-1], axis, reach)]
            if not behind and not _is_open(path[-1]):
                return [_reason(item, axis) for item in path]
            for item in behind:
                if _key(item) not in seen:
                    seen.add(_key(item))
                    queue.append((*path, item))
    return [_reason(value, axis)]


def _is_open(item: Value | Op) -> bool:
    """Whether an origin doesn't say where a split comes from."""
    origin = item.origin or Origin("default")
    return origin.kind == "implied" or origin.detail == LEFT_PENDING


def _reason(item: Value | Op, axis: str) -> Reason:
    return _of_value(item, axis) if isinstance(item, Value) else _of_op(item)


def _key(item: Value | Op) -> object:
    return item.name if isinstance(item, Value) else item.results


def _of_value(value: Value, axis: str) -> Reason:
    origin = value.origin or Origin("default")
    return Reason(f"%{value.name}", str(value.dist), origin.kind, _along(origin, axis), value.loc)


def _of_op(op: Op) -> Reason:
    origin = op.origin or Origin("default")
    return Reason(bare_kind(op.kind), choice_text(op), origin.kind, origin.detail, op.loc)


def choice_text(op: Op) -> str:
    """Returns how an op is computed: `m@dp, k@tp`."""
    if op.dist is None:
        return ""
    parts = [f"{name}@{'+'.join(axes)}" for name, _ in op.dist.factors if (axes := _of(op, name))]
    parts += [f"{each.monoid}@{each.axis} passes through" for each in op.dist.pending]
    parts += [f"by body {op.dist.body!r}"] if op.dist.body else []
    return ", ".join(parts) or "alike by every process"


def _of(op: Op, factor: str) -> tuple[str, ...]:
    return split_axes(op.dist, factor) if op.dist is not None else ()


def _along(origin: Origin, axis: str) -> str:
    """Returns the detail of an origin as far as it is about an axis: of presets, the one for it."""
    if origin.kind != "preset":
        return origin.detail
    presets = [part for part in origin.detail.split(",") if part.endswith(f":{axis}")]
    return ", ".join(presets) or origin.detail


def _behind(around: _Around, item: Value | Op, axis: str, reach: int) -> Iterator[Value | Op]:
    """Yields what an item's layout may follow from, as far as the axis splits that too.

    Args:
        around: The function.
        item: A value or an op.
        axis: The mesh axis.
        reach: What counts: one of the three below, each with those before it.
    """
    if not _is_open(item) or item.origin is None:
        return
    if isinstance(item, Value):
        producer = around.producers.get(item.name)
        if producer is not None:
            yield producer
            return
        readers = around.reading(item.name, axis)
        named = [op for op in readers if _mentions(item.origin, op)]
        yield from named or readers
        return
    named_values = item.origin.detail.removeprefix(BY).split(", ")
    for at, name in enumerate(item.operands):
        taken = around.taken(item, at)
        if (reach >= OPERANDS or f"%{name}" in named_values) and axis in _axes(taken):
            yield around.values[name]
    for at, name in enumerate(item.results):
        made = around.made(item, at)
        named_readers = reach >= READERS_TOO or f"{READERS}%{name}" in named_values
        if named_readers and axis in made.sharded_axes:
            yield from around.reading(name, axis)


def _mentions(origin: Origin, op: Op) -> bool:
    """Whether an origin is about an op: `by aten.mm.default at model.py:12`."""
    where = f" at {op.loc}" if op.loc.file or op.loc.name else ""
    return f"{BY}{op.kind}{where}" in origin.detail.split(", ")
