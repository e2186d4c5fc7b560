"""Slices: completes a program whose ops run on different slices of the mesh.

The ops of all slices with the same axes, as the stages of a pipeline, are one program with the
values around them. It is completed on those axes like any other, as if the slices were one: so
stages agree on how a tensor lies that one sends to another. What comes from elsewhere is an input
that lies as it arrives; what goes to another slice is an output, so it leaves complete. Partition
connects the layouts.

What is stored on more of the mesh than a slice and read there by a loop, as a parameter that
several stages share, is brought there once, as an input of the slice, not in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.completion.submesh.where import Place, Places
from autopar.ir import emitted
from autopar.ir.dims import dim_axes
from autopar.ir.fixed import index_text
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.program import STORED_ROLES, Function, Op, OpDist, Ref, Value

CompleteOn = Callable[[Function, ProcessMesh, str], Function]
"""Completes a function on a slice of the mesh, which is like all those that a text names."""


BROUGHT = Origin("implied", "read there by several microbatches")
"""Why there is an op that brings a slice what is stored elsewhere."""


def without_brought(function: Function) -> Function:
    """Returns a complete function without the ops that completion has added to bring something."""
    sources = {op.results[0]: op.operands[0] for op in function.ops if op.origin == BROUGHT}
    if not sources:
        return function
    ops = tuple(
        op.with_operands([sources.get(name, name) for name in op.operands])
        for op in function.ops
        if op.results[0] not in sources
    )
    values = {name: value for name, value in function.values.items() if name not in sources}
    return replace(function, ops=ops, values=values)


def complete_slices(
    function: Function, places: Places, mesh: ProcessMesh, complete_on: CompleteOn
) -> Function:
    """Returns the function with every value and op complete.

    Args:
        function: The serial function, with pins.
        places: Where everything of it is.
        mesh: The whole mesh.
        complete_on: Completes the ops of slices that are alike.
    """
    return _Slices(function, places, mesh, complete_on).complete()


Axes = tuple[tuple[str, int], ...]
"""The axes of a slice with their sizes: slices on which they are equal are alike."""


@dataclass
class _Slices:
    """The slices of a function, those that are alike completed together."""

    function: Function
    places: Places
    mesh: ProcessMesh
    complete_on: CompleteOn
    found: dict[Axes, Function] = field(default_factory=dict)
    meshes: dict[Axes, ProcessMesh] = field(default_factory=dict)
    """The slice that stands for those with these axes."""

    def complete(self) -> Function:
        by_axes: dict[Axes, dict[Place, None]] = {}
        self.made_at: dict[str, Place] = {}
        for op in self.function.ops:
            place = self.places.ops[op.results]
            by_axes.setdefault(self._axes(place), {}).setdefault(place)
            self.made_at.update(dict.fromkeys(op.results, place))
        for axes, places in by_axes.items():
            self.meshes[axes] = self.mesh.at(next(iter(places)))
            ops = [op for op in self.function.ops if self.places.ops[op.results] in places]
            section = self._section(axes, ops)
            self.found[axes] = self.complete_on(section, self.meshes[axes], self._text(places))
        done = {op.results: op for section in self.found.values() for op in section.ops}
        values = {name: self._kept(value) for name, value in self.function.values.items()}
        for output, source in self.function.aliases:
            values[output] = replace(values[output], dist=values[source].dist)
        brought = _Brought(self, values)
        computed = (self._computed(done[op.results]) for op in self.function.ops)
        ordered = tuple(new for op in computed for new in brought.ahead(op))
        return replace(self.function, ops=ordered, values=values)

    @cached_property
    def _known_axes(self) -> dict[Place, Axes]:
        return {}

    def _axes(self, place: Place) -> Axes:
        """Returns the axes of the slice at a place."""
        if place not in self._known_axes:
            self._known_axes[place] = tuple(self.mesh.at(place).axis_sizes().items())
        return self._known_axes[place]

    def _text(self, places: Iterable[Place]) -> str:
        """Returns which slices there are, as text: `pp=0 to pp=3`."""
        texts = sorted({self.mesh.at(place).place for place in places})
        return f"{texts[0]} to {texts[-1]}" if len(texts) > 2 else " and ".join(texts)

    def _section(self, axes: Axes, ops: Sequence[Op]) -> Function:
        """Returns the ops of slices that are alike as a function."""
        function = self.function
        made = {name for op in ops for name in op.results}
        ports = (*function.inputs, *function.outputs)
        here = {name for name in ports if self._is_kept(name, axes)}
        around = made.union(here, *(op.operands for op in ops))
        names = [name for name in function.values if name in around]
        return Function(
            function.name,
            tuple(name for name in names if name not in made),
            tuple(name for name in names if name in made and self._leaves(name)),
            {name: self._seen(name, axes) for name in names},
            tuple(ops),
            tuple((out, into) for out, into in function.aliases if out in made and into in here),
        )

    def _is_kept(self, name: str, axes: Axes) -> bool:
        """Whether a value is kept on a slice with these axes."""
        return self._axes(self.places.values[name]) == axes

    def _leaves(self, name: str) -> bool:
        """Whether a value that an op makes is read elsewhere, or by the caller."""
        place = self.made_at[name]
        return (
            name in self.function.outputs
            or self.places.values[name] != place
            or any(self.places.ops[op.results] != place for op in self.uses[name])
        )

    @cached_property
    def uses(self) -> dict[str, list[Op]]:
        """The ops that read each value."""
        return self.function.consumers()

    def _seen(self, name: str, axes: Axes) -> Value:
        """Returns a value as ops see it: pinned by the user, or as it arrives."""
        value, mesh = self.function.values[name], self.meshes[axes]
        if self._is_kept(name, axes):
            return _on(value, mesh)
        free = replace(value, dist=None, origin=None)
        arriving = (None if _is_decided(value) else value.dist) or self._layout(name)
        made_at = self.made_at.get(name)
        if arriving is None or (made_at is not None and self._axes(made_at) == axes):
            return free
        split = arriving.onto(mesh)
        if not split.sharded_axes:
            return free
        return replace(value, dist=split, origin=Origin("preset", "as it arrives"))

    def _layout(self, name: str) -> Layout | None:
        """Returns how a value lies on slices that are complete: where it is made, if it can be."""
        places = (self.made_at.get(name), self.places.values[name])
        own = (self._axes(place) for place in places if place is not None)
        for axes in (*own, *self.found):
            section = self.found.get(axes)
            if section is not None and name in section.values:
                return section.values[name].dist
        return None

    def _kept(self, value: Value) -> Value:
        """Returns a value with the layout in which it is kept."""
        place = self.places.values[value.name]
        section, mesh = self.found.get(self._axes(place)), self.mesh.at(place)
        if section is not None and value.name in section.values:
            return self.value_at(value.name, place)
        if value.dist is not None:
            return _on(value, mesh)
        layout = self._layout(value.name) or Layout.replicated(mesh, value.global_shape)
        return replace(value, dist=layout.onto(mesh), origin=Origin("implied", "as it is used"))

    def value_at(self, name: str, place: Place) -> Value:
        """Returns a value as it lies on a slice that is complete."""
        value, mesh = self.found[self._axes(place)].values[name], self.mesh.at(place)
        return value if value.dist is None else replace(value, dist=replace(value.dist, mesh=mesh))

    def _computed(self, op: Op) -> Op:
        """Returns an op that is complete on the slice on which it runs."""
        mesh = self.mesh.at(self.places.ops[op.results])
        return op if op.dist is None else replace(op, dist=replace(op.dist, mesh=mesh))


class _Brought:
    """What is stored elsewhere, and brought to slices once.

    Args:
        slices: The slices, complete.
        values: The values of all; those that are brought are added.
    """

    def __init__(self, slices: _Slices, values: dict[str, Value]) -> None:
        self._slices, self._values = slices, values
        self._inputs = {
            name
            for name in slices.function.inputs
            if values[name].role in STORED_ROLES and any(op.loops for op in slices.uses[name])
        }
        self._known: dict[tuple[str, Place], str] = {}

    def ahead(self, op: Op) -> Iterator[Op]:
        """Yields what brings the operands of an op, and the op that reads that."""
        place = self._slices.places.ops[op.results]
        names = list(op.operands)
        for at, name in enumerate(names):
            if name not in self._inputs or self._slices.places.values[name] == place:
                continue
            if (name, place) not in self._known:
                yield self._bring(name, place, op)
            names[at] = self._known[name, place]
        yield op.with_operands(names) if names != list(op.operands) else op

    def _bring(self, name: str, place: Place, reader: Op) -> Op:
        """Returns what brings an input to a place, for a reader and all that follow."""
        fixed = sorted(place, key=lambda pair: pair[0])
        where = ".".join(f"{axis}{index_text(index)}" for axis, index in fixed) or "all"
        known = self._known[name, place] = f"{name}.on.{where}"
        value = self._slices.value_at(name, place)
        self._values[known] = replace(value, name=known, role="activation")
        kind, args = emitted.alias().kind, (("self", Ref(name)),)
        made = Op(kind, args, (known,), None, BROUGHT, reader.loc, reader.stage)
        return replace(made, dist=self._choice(made, value))

    def _choice(self, op: Op, value: Value) -> OpDist:
        """Returns the choice by which an alias lies as a value: each process has its part of it."""
        rule, layout = rule_of(op, self._values), value.dist
        assert rule is not None
        assert layout is not None
        factors = (factor for (factor,) in rule.results[0])
        split = zip(factors, layout.dims, strict=True)
        return OpDist(layout.mesh, tuple((f, dim) for f, dim in split if dim_axes(dim)))


def _is_decided(value: Value) -> bool:
    """Whether it was decided before how a value is stored: then not because of its readers."""
    decided = value.origin is not None and value.origin.kind == "inherited"
    return decided and value.role in STORED_ROLES


def _on(value: Value, mesh: ProcessMesh) -> Value:
    """Returns a value with its pin, if it has one, on the slice where it is kept."""
    if value.dist is None or value.dist.mesh == mesh:
        return value
    return replace(value, dist=value.dist.named_on(mesh))
