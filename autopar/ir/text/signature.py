"""The signature that a program has where its text form doesn't spell one out."""

from __future__ import annotations

from autopar.ir.dims import local_extent
from autopar.ir.expr.expression import IntExpr, axes_of, prod
from autopar.ir.layout import Layout
from autopar.ir.program import Arg, BoxDim, Part, Port, Program, Signature, Value

Box = tuple[tuple[BoxDim, ...], ...]


def box_of(layout: Layout) -> Box:
    """Returns the piece of a tensor that a rank holds under a layout."""
    return tuple(
        tuple(BoxDim(sub.size, *local_extent(sub, layout.mesh)) for sub in dim)
        for dim in layout.dims
    )


def box_shape(box: Box) -> tuple[IntExpr, ...]:
    """Returns the shape of the tensor that a box is a piece of."""
    return tuple(prod(sub.size for sub in dim) for dim in box)


def default_box(value: Value, level: str) -> Box:
    """Returns the box of a value's layout in a partitioned program, else the empty one."""
    return box_of(value.dist) if value.dist is not None and level == "partitioned" else ()


def make_port(
    value: Value,
    level: str,
    label: str | None,
    box: Box | None,
    fill: float | None = None,
    aliases: tuple[str, ...] = (),
    part: Part | None = None,
    options: tuple[tuple[str, Arg], ...] = (),
) -> Port | None:
    """Returns the port of a value with this label and box, by default its name and layout's box.

    None if nothing tells the global shape: the box, the layout, or a shape that is plain numbers.
    """
    box = default_box(value, level) if box is None else box
    if box:
        shape = box_shape(box)
    elif value.dist is not None:
        shape = value.dist.shape
    elif any(axes_of(size) for size in value.shape):
        return None
    else:
        shape = value.shape
    label = value.name if label is None else label
    return Port(
        value.name, label, value.dtype, shape, value.role, box, fill, aliases, part, options
    )


def derived_signature(program: Program) -> Signature | None:
    """Returns the signature in which every port is the default one; None if one has no shape."""
    if "main" not in program.functions:
        return Signature()
    main = program.main
    names = (*main.inputs, *main.outputs)
    if any(name not in main.values for name in names):
        return None
    ports = [make_port(main.values[name], program.level, None, None) for name in names]
    known = [port for port in ports if port is not None]
    if len(known) < len(ports):
        return None
    count = len(main.inputs)
    return Signature(tuple(known[:count]), tuple(known[count:]))
