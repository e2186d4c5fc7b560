"""Reads the marks in a graph: which values the user pinned, and to which layouts.

A mark says how its result lies. The result is the operand, so the operand's value is pinned and
the mark itself is gone; only where that value is pinned otherwise already does the mark stay, as an
op that does nothing but connect the two layouts. A mark on a slice of the mesh stays if its result
is used: what it returns is on the slice, and what it is given where that was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from autopar.base.errors import AnnotationError, Loc
from autopar.ir.emitted import MARK
from autopar.ir.expr.expression import IntExpr
from autopar.ir.layout import Layout, Origin
from autopar.ir.mark import STAGE, Mark
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Value

Locate = Callable[[fx.Node], Loc]
Shape = tuple[IntExpr, ...]
ShapeOf = Callable[[fx.Node], Shape]


@dataclass(frozen=True, slots=True)
class Pinned:
    """What all marks of one value say.

    Attributes:
        place: Where the user wrote them.
        layout: Its layout; None if none of them says.
        mask: Ids of the processes that hold it; None for all, or if none of them says.
        offload: The memory that holds it between uses; "" if none of them says.
    """

    place: str
    layout: Layout | None = None
    mask: tuple[int, ...] | None = None
    offload: str = ""

    @property
    def says_nothing(self) -> bool:
        """Whether all processes may hold the tensor, in whichever way."""
        return self.layout is None and self.mask is None and not self.offload

    @property
    def is_pending(self) -> bool:
        """Whether a reduction is pending."""
        return self.layout is not None and bool(self.layout.partial)

    def is_part_of(self, mesh: ProcessMesh) -> bool:
        """Whether the tensor is to be on a slice of a mesh."""
        return self.layout is not None and self.layout.mesh != mesh

    def merged(self, other: Pinned) -> Pinned | None:
        """Returns what both say together; None if they contradict one another."""
        for mine, theirs in (
            (self.layout, other.layout),
            (self.mask, other.mask),
            (self.offload or None, other.offload or None),
        ):
            if mine is not None and theirs is not None and mine != theirs:
                return None
        both = Pinned(
            self.place,
            self.layout or other.layout,
            other.mask if self.mask is None else self.mask,
            self.offload or other.offload,
        )
        if both == self or other.place in self.place.split(", "):
            return both
        return replace(both, place=f"{self.place}, {other.place}")

    def pin(self, value: Value, mesh: ProcessMesh) -> Value:
        """Returns the value as it is pinned on a mesh."""
        layout = self.layout or Layout.replicated(mesh, value.global_shape)
        dist = replace(layout, mask=self.mask, offload=self.offload)
        # A memory alone says nothing about how the tensor is split.
        kind = "default" if self.layout is None and self.mask is None else "annotated"
        return replace(value, dist=dist, origin=Origin(kind, self.place))


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a graph.

    Attributes:
        mesh: The program's mesh; None if nobody named one.
        pins: What is pinned, by the node that computes it.
        same: The marks that are gone, and the nodes that compute what they mark.
        chunks: What is computed in parts, by its node: the dimension, and how many.
    """

    mesh: ProcessMesh | None
    pins: Mapping[fx.Node, Pinned]
    same: Mapping[fx.Node, fx.Node]
    chunks: Mapping[fx.Node, tuple[int, int]]

    def pinned(
        self, values: Mapping[str, Value], names: Mapping[fx.Node, str | tuple[str, ...]]
    ) -> dict[str, Value]:
        """Returns the values that are pinned, by name.

        Args:
            values: All values by name.
            names: Names of the values that a node computes; dead nodes have none.
        """
        found = {}
        for node, pinned in self.pins.items():
            name = names.get(node)
            if isinstance(name, str) and self.mesh is not None:
                found[name] = pinned.pin(values[name], self.mesh)
        return found


def stage_of(node: fx.Node) -> int:
    """Returns the pipeline stage that the user put a node into; 0 if none."""
    return int((node.meta.get("custom") or {}).get(STAGE, 0))


def is_mark(node: fx.Node) -> bool:
    """Whether a node is a mark."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return f"{target.namespace}.{target._opname}.{target._overloadname}" == MARK


def read_marks(
    graph: fx.Graph,
    copies: Mapping[fx.Node, fx.Node],
    parameters: Collection[fx.Node],
    mesh: ProcessMesh | None,
    locate: Locate,
    shape_of: ShapeOf,
) -> Marks:
    """Reads the marks of a graph.

    Args:
        graph: The graph.
        copies: Nodes that hold what another node computes.
        parameters: The placeholders of parameters. The mark of one says how it is stored; its
            gradient isn't pinned, as it may be pending until it is used.
        mesh: The mesh to compile for, if it is known; otherwise it is the marks'.
        locate: Where a node comes from.
        shape_of: The shape of what a node computes, in which sizes may be open.

    Raises:
        AnnotationError: If a mark doesn't fit its tensor or the mesh, or nothing comes of it.
    """
    marks = {node: _placed(node, locate) for node in graph.nodes if is_mark(node)}
    if not marks:
        return Marks(mesh, {}, {}, {})
    if laid_out := [mark for mark in marks.values() if mark.chunk is None]:
        mesh = mesh or _mesh_of(laid_out)
    shapes = {node: shape_of(node) for node in marks}
    found = _Reader(dict(copies), frozenset(parameters), marks, shapes, mesh)
    for node in marks:
        found.read(node)
    return Marks(mesh, found.pins, found.same, found.chunks)


class _Reader:
    """Reads marks in the order of the graph."""

    def __init__(
        self,
        holders: dict[fx.Node, fx.Node],
        parameters: frozenset[fx.Node],
        marks: Mapping[fx.Node, Mark],
        shapes: Mapping[fx.Node, Shape],
        mesh: ProcessMesh | None,
    ) -> None:
        self.holders = holders
        self.parameters = parameters
        self.marks = marks
        self.shapes = shapes
        self.mesh = mesh
        self.forward: dict[tuple[Mark, Shape], list[fx.Node]] = {}
        for node, mark in marks.items():
            if not mark.is_gradient:
                key = mark.of_gradient(), shapes[node]
                self.forward.setdefault(key, []).append(node)
        self.pins: dict[fx.Node, Pinned] = {}
        self.same: dict[fx.Node, fx.Node] = {}
        self.chunks: dict[fx.Node, tuple[int, int]] = {}

    def read(self, node: fx.Node) -> None:
        """Reads one mark."""
        holder = self._holder(node)
        chunk = self.marks[node].chunk
        if chunk is not None:
            self._read_chunk(node, holder, chunk)
            return
        assert self.mesh is not None
        pinned = _resolved(self.marks[node], self.shapes[node], self.mesh)
        earlier = self.pins.get(holder)
        together = pinned if earlier is None else earlier.merged(pinned)
        if self._is_of_parameter(node) or pinned.says_nothing:
            self._drop(node, holder)
        elif pinned.is_part_of(self.mesh) and node.users:
            # Whatever else reads the tensor reads it from where it is computed.
            self.pins[node] = pinned
        elif together is None or (pinned.is_pending and holder.op == "placeholder"):
            _check_used(node, pinned, earlier)
            self.pins[node] = pinned
        else:
            self.pins[holder] = together
            self._drop(node, holder)

    def _read_chunk(self, node: fx.Node, holder: fx.Node, chunk: tuple[int, int]) -> None:
        """Reads that a tensor is computed in parts; where no op has it alone, the mark stays."""
        if isinstance(holder.target, torch._ops.OpOverload):
            self.chunks[holder] = chunk
            self._drop(node, holder)
        else:
            self.chunks[node] = chunk

    def _holder(self, node: fx.Node) -> fx.Node:
        """Returns the node that computes what a mark marks."""
        holder = node.all_input_nodes[0]
        while holder in self.holders:
            holder = self.holders[holder]
        return holder

    def _drop(self, node: fx.Node, holder: fx.Node) -> None:
        self.same[node] = self.holders[node] = holder

    def _is_of_parameter(self, node: fx.Node) -> bool:
        """Whether a mark is the one of a parameter's gradient."""
        mark = self.marks[node]
        if not mark.is_gradient:
            return False
        forward = self.forward.get((mark, self.shapes[node]), [])
        # Where torch numbers what it differentiates, the line need not tell alone.
        number = node.meta.get("seq_nr")
        numbered = [other for other in forward if other.meta.get("seq_nr") == number]
        sources = {self._holder(other) for other in numbered or forward}
        return bool(sources) and sources <= self.parameters


def check_complete(outputs: Iterable[fx.Node], pins: Mapping[fx.Node, Pinned]) -> None:
    """Checks that no output of the program is left pending.

    Raises:
        AnnotationError: If one is.
    """
    for node in outputs:
        pinned = pins.get(node)
        if pinned is not None and pinned.is_pending:
            raise AnnotationError(
                f"{pinned.place}: the tensor stays pending a reduction, but the model returns it;"
                " leave out partial="
            )


def _placed(node: fx.Node, locate: Locate) -> Mark:
    mark = Mark.parse(str(node.args[1]))
    return mark if mark.place else replace(mark, place=str(locate(node)))


def _mesh_of(marks: Sequence[Mark]) -> ProcessMesh:
    """Returns the whole mesh that the first mark with a mesh is on."""
    mesh = next((mark.mesh for mark in marks if mark.mesh is not None), None)
    if mesh is None:
        raise AnnotationError(
            f"{marks[0].place}: the mark leaves the mesh open, and none is given; compile for a"
            " mesh, or name it here"
        )
    while mesh.parent is not None:
        mesh = mesh.parent
    return mesh


def _resolved(mark: Mark, shape: Shape, mesh: ProcessMesh) -> Pinned:
    home = mesh if mark.mesh is None else mesh.slice_of(mark.mesh)
    if home is None or (home == mesh and mark.mesh not in (None, mesh)):
        assert mark.mesh is not None
        raise AnnotationError(f"{mark.place}: {_other_mesh(mark.mesh, mesh)}")
    mark = mark.on(home)
    try:
        place = f"{mark.place} (gradient)" if mark.is_gradient else mark.place
        mask = mark.masked(home)
        held_by = None if mask is None else home.box_with(mask)
        if held_by is None:
            return Pinned(place, mark.layout(shape, home), mask, mark.offload)
        # All of it is on a box, or the mask says nothing.
        layout = None if held_by == home else Layout.replicated(held_by, shape)
        return Pinned(place, layout, None, mark.offload)
    except AnnotationError as error:
        raise AnnotationError(f"{mark.place}: {error}") from error


def _other_mesh(mesh: ProcessMesh, program: ProcessMesh) -> str:
    ids = f"mesh {mesh} of processes {_shortened(mesh.process_ids)}"
    if mesh.size < program.size and set(mesh.process_ids) < set(program.process_ids):
        return (
            f"the mark is on {ids}, which are no slice of mesh {program}; take one from it, as"
            f" mesh[{program.dim_names[0]!r}, 0]"
        )
    return (
        f"the mark is on {ids}, but the model is compiled for mesh {program} of processes"
        f" {_shortened(program.process_ids)}; use one mesh for both, or None in the mark"
    )


def _shortened(ids: tuple[int, ...]) -> str:
    return str(list(ids)) if len(ids) <= 8 else f"[{ids[0]}, {ids[1]}, ..., {ids[-1]}]"


def _check_used(node: fx.Node, pinned: Pinned, earlier: Pinned | None) -> None:
    if not node.users:
        why = f"is marked otherwise by {earlier.place}" if earlier else "is an input of the model"
        raise AnnotationError(
            f"{pinned.place}: the tensor {why}, and nothing uses the marked one that is returned"
            " here; use it, or remove the mark"
        )
