"""Slices: completes a program whose ops run on different slices of the mesh.

The ops of each slice, with the values around them, are a program of their own, completed on the
slice's axes like any other. What comes from another slice is an input that lies as it arrives; what
goes to another one is an output, so it leaves complete. Partition connects the layouts.

What is stored on more of the mesh than a slice and read there by a loop, as a parameter that
several stages share, is brought there once, as an input of the slice, not in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.completion.submesh.where import Place, Places
from autopar.ir import emitted
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import STORED_ROLES, Function, Op, OpDist, Ref, Value

CompleteOn = Callable[[Function, ProcessMesh], Function]
"""Completes a function on a slice of the mesh."""


def complete_slices(
    function: Function, places: Places, mesh: ProcessMesh, complete_on: CompleteOn
) -> Function:
    """Returns the function with every value and op complete.

    Args:
        function: The serial function, with pins.
        places: Where everything of it is.
        mesh: The whole mesh.
        complete_on: Completes the ops of one slice.
    """
    return _Slices(function, places, mesh, complete_on).complete()


@dataclass
class _Slices:
    """The slices of a function, completed one after another in the order of their first ops."""

    function: Function
    places: Places
    mesh: ProcessMesh
    complete_on: CompleteOn
    found: dict[Place, Function] = field(default_factory=dict)

    def complete(self) -> Function:
        by_place: dict[Place, list[Op]] = {}
        self.made_at: dict[str, Place] = {}
        for op in self.function.ops:
            place = self.places.ops[op.results]
            by_place.setdefault(place, []).append(op)
            self.made_at.update(dict.fromkeys(op.results, place))
        for place, ops in by_place.items():
            self.found[place] = self.complete_on(self._section(place, ops), self.mesh.at(place))
        done = {op.results: op for section in self.found.values() for op in section.ops}
        values = {name: self._kept(value) for name, value in self.function.values.items()}
        for output, source in self.function.aliases:
            values[output] = replace(values[output], dist=values[source].dist)
        brought = _Brought(self, values)
        ordered = tuple(new for op in self.function.ops for new in brought.ahead(done[op.results]))
        return replace(self.function, ops=ordered, values=values)

    def _section(self, place: Place, ops: Sequence[Op]) -> Function:
        """Returns the ops of a place as a function."""
        function, mesh = self.function, self.mesh.at(place)
        made = {name for op in ops for name in op.results}
        ports = (*function.inputs, *function.outputs)
        here = {name for name in ports if self.places.values[name] == place}
        around = made.union(here, *(op.operands for op in ops))
        names = [name for name in function.values if name in around]
        return Function(
            function.name,
            tuple(name for name in names if name not in made),
            tuple(name for name in names if name in made and self._leaves(name, place)),
            {name: self._seen(name, place, mesh) for name in names},
            tuple(ops),
            tuple((out, into) for out, into in function.aliases if out in made and into in here),
        )

    def _leaves(self, name: str, place: Place) -> bool:
        """Whether a value that is made at a place is read elsewhere, or by the caller."""
        return (
            name in self.function.outputs
            or self.places.values[name] != place
            or any(self.places.ops[op.results] != place for op in self.uses[name])
        )

    @cached_property
    def uses(self) -> dict[str, list[Op]]:
        """The ops that read each value."""
        return self.function.consumers()

    def _seen(self, name: str, place: Place, mesh: ProcessMesh) -> Value:
        """Returns a value as the ops of a place see it: pinned by the user, or as it arrives."""
        value = self.function.values[name]
        if self.places.values[name] == place:
            return _on(value, mesh)
        free = replace(value, dist=None, origin=None)
        arriving = value.dist or self._layout(name)
        if self.made_at.get(name) == place or arriving is None:
            return free
        split = arriving.onto(mesh)
        if not split.sharded_axes:
            return free
        return replace(value, dist=split, origin=Origin("preset", "as it arrives"))

    def _layout(self, name: str) -> Layout | None:
        """Returns how a value lies on a slice that is complete: where it is made, if it can be."""
        for place in (self.made_at.get(name), self.places.values[name], *self.found):
            section = self.found.get(place) if place is not None else None
            if section is not None and name in section.values:
                return section.values[name].dist
        return None

    def _kept(self, value: Value) -> Value:
        """Returns a value with the layout in which it is kept."""
        place = self.places.values[value.name]
        section, mesh = self.found.get(place), self.mesh.at(place)
        if section is not None and value.name in section.values:
            return section.values[value.name]
        if value.dist is not None:
            return _on(value, mesh)
        layout = self._layout(value.name) or Layout.replicated(mesh, value.global_shape)
        return replace(value, dist=layout.onto(mesh), origin=Origin("implied", "as it is used"))


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
            if values[name].role in STORED_ROLES and any(op.times > 1 for op in slices.uses[name])
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
        where = ".".join(f"{axis}{index}" for axis, index in sorted(place)) or "all"
        known = self._known[name, place] = f"{name}.on.{where}"
        value = self._slices.found[place].values[name]
        self._values[known] = replace(value, name=known, role="activation")
        mesh = self._slices.mesh.at(place)
        origin = Origin("implied", "read there by several microbatches")
        args = (("self", Ref(name)),)
        return Op(
            emitted.alias().kind, args, (known,), OpDist(mesh), origin, reader.loc, reader.stage
        )


def _on(value: Value, mesh: ProcessMesh) -> Value:
    """Returns a value with its pin, if it has one, on the slice where it is kept."""
    if value.dist is None or value.dist.mesh == mesh:
        return value
    return replace(value, dist=value.dist.onto(mesh))
