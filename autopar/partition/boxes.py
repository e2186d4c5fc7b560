"""Boxes: which piece of an input or output each rank holds, as rank expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.base.errors import VerificationError
from autopar.ir.dims import local_extent
from autopar.ir.expr.expression import Coord, IntExpr, maximum, minimum
from autopar.ir.fixed import indices_of
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import BoxDim, Port, Signature, Value

Box = tuple[tuple[BoxDim, ...], ...]


def box_of(layout: Layout) -> Box:
    """Returns, per dimension, a rank's piece of each sub-dimension of a tensor laid out so.

    Outside of the layout's slice of the mesh the first length is 0; see `Port.box`.
    """
    held = is_in(layout.mesh)
    box = tuple(
        tuple(BoxDim(sub.size, *local_extent(sub, layout.mesh)) for sub in dim)
        for dim in layout.dims
    )
    if held == 1:
        return box
    if layout.mesh.runs:
        # Behind a run, blocks would begin where there is nothing any more.
        box = tuple(tuple(replace(sub, start=sub.start * held) for sub in dim) for dim in box)
    if not box:
        return ((BoxDim(1, 0, held),),)
    first, *rest = box[0]
    first = replace(first, length=first.length * held)
    return ((first, *rest), *box[1:])


def is_in(mesh: ProcessMesh) -> IntExpr:
    """Returns 1 on the processes of a part of the mesh, and 0 elsewhere."""
    inside: IntExpr = 1
    for axis, where in mesh.fixed:
        if mesh.root.axis_size(axis) > 1:
            at: IntExpr = 0
            for index in indices_of(where):
                near = minimum(Coord(axis) + (1 - index), Coord(axis) * -1 + (index + 1))
                at = at + maximum(0, near)
            inside = inside * at
    return inside


def with_boxes(signature: Signature, values: Mapping[str, Value]) -> Signature:
    """Returns the signature with the boxes that follow from the layouts of the values.

    Raises:
        VerificationError: If a port names a value that doesn't exist or has no layout.
    """
    return Signature(
        tuple(_with_box(port, values) for port in signature.inputs),
        tuple(_with_box(port, values) for port in signature.outputs),
    )


def _with_box(port: Port, values: Mapping[str, Value]) -> Port:
    value = values.get(port.name)
    if value is None or value.dist is None:
        why = "is not a value of main" if value is None else "has no layout"
        raise VerificationError("the signature doesn't fit", [f"port %{port.name} {why}"])
    return replace(port, box=box_of(value.dist))
