"""Prints the parts of a line of the text form: types, arguments, choices, origins, locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autopar.base.errors import UNKNOWN, Loc
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import UNBOUNDED, Binary, Expr, Size, axes_of
from autopar.ir.expr.relation import Relation
from autopar.ir.fixed import index_text
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Arg, BoxDim, DType, Op, OpDist, Part, Port, Ref, Value
from autopar.ir.text.layouts import dim_text, dims_text, pending_text
from autopar.ir.text.words import integers, kind, quote, value_name, word

CONSTANTS: Mapping[str, Arg] = {
    "none": None,
    "true": True,
    "false": False,
    "inf": float("inf"),
    "nan": float("nan"),
}
"""Arguments that are words."""

RESERVED = frozenset((*CONSTANTS, *DTYPE_BYTES, "complex", "dtype"))
"""Words that aren't mesh axes where an argument begins."""


@dataclass(frozen=True)
class Context:
    """What the lines of a program are printed relative to.

    Attributes:
        mesh: The program's mesh, which goes without saying.
        meshes: Names of other meshes.
        files: Short names of source files.
        origins: Whether to print origins.
    """

    mesh: ProcessMesh | None = None
    meshes: Mapping[ProcessMesh, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    origins: bool = True


def size_line(size: Size) -> str:
    """Returns the declaration of an open size: `size $batch = 0..64 planned 8`."""
    most = "" if size.most == UNBOUNDED else size.most
    step = f" step {size.step}" if size.step > 1 else ""
    return f"size {size} = {size.least}..{most}{step} planned {size.planned}"


def relation_line(relation: Relation, context: Context) -> str:
    """Returns the declaration of a relation: `relation $past + $length <= 512 loc("file")`."""
    return " ".join((f"relation {relation}", *loc_clauses(relation.loc, context)))


def mesh_ref(mesh: ProcessMesh, context: Context) -> str:
    """Returns a reference to a mesh: `mesh`, `@m1`, or a part of one, `mesh[pp=0]`."""
    if mesh == context.mesh:
        return "mesh"
    if mesh.fixed and mesh.parent is not None:
        axis, index = mesh.fixed[-1]
        return f"{mesh_ref(mesh.parent, context)}[{axis}={index_text(index)}]"
    return f"@{context.meshes.get(mesh, '?')}"


def value_type(value: Value) -> str:
    """Returns `f32[8@dp, 768]`, with the layout behind the shape where the shape is local."""
    dtype, layout = word(value.dtype), value.dist
    shape = ", ".join(map(str, value.shape))
    if layout is None:
        return f"{dtype}[{shape}]"
    dims = dims_text(layout.dims)
    if value.shape == layout.shape:
        return f"{dtype}[{dims}]"
    return f"{dtype}[{shape}] of [{dims}]"


def _shows_layout(value: Value, layout: Layout) -> bool:
    """Returns whether the type of a value tells that it has a layout."""
    plain = all(len(dim) == 1 and not dim[0].axes for dim in layout.dims)
    return not plain or value.shape != layout.shape


def layout_clauses(layout: Layout, context: Context) -> Iterator[str]:
    """Yields what follows the dimensions: `sum@tp`, `mask [0..3]`, `offload cpu`, `on @m1`."""
    yield from (pending_text(axis, monoid) for axis, monoid in layout.partial)
    if layout.mask is not None:
        yield f"mask [{integers(layout.mask)}]"
    if layout.offload:
        yield f"offload {word(layout.offload)}"
    if layout.mesh != context.mesh:
        yield f"on {mesh_ref(layout.mesh, context)}"


def value_clauses(
    value: Value, context: Context, *, op: Op | None = None, port: Iterable[str] = ()
) -> Iterator[str]:
    """Yields the type of a value and all that follows it.

    Args:
        value: The value.
        context: Of the program.
        op: The op that produces it; None if it is an input, whose role stands before it.
        port: What the value tells about its port.
    """
    yield value_type(value)
    chosen = op.dist if op is not None else None
    if value.dist is None:
        yield from ("undistributed",) if chosen is not None else ()
    else:
        clauses = list(layout_clauses(value.dist, context))
        yield from clauses
        # What an op with a choice produces has a layout, so one that splits nothing is assumed.
        assumed = chosen is not None and chosen.mesh == context.mesh
        if not clauses and not assumed and not _shows_layout(value, value.dist):
            yield "replicated"
    if op is not None and value.role != "activation":
        yield word(value.role)
    yield from port
    assumed_origin = op.origin if op is not None and value.dist is not None else None
    if context.origins and value.origin != assumed_origin:
        yield origin_str(value.origin)
    yield from loc_clauses(value.loc, context)


def origin_str(origin: Origin | None) -> str:
    """Returns `~implied("the op")`; `~none` for no origin where one would be assumed."""
    if origin is None:
        return "~none"
    name = word(origin.kind) if origin.kind != "none" else quote(origin.kind)
    return f"~{name}({quote(origin.detail)})" if origin.detail else f"~{name}"


def loc_clauses(loc: Loc, context: Context) -> Iterator[str]:
    """Yields `loc("file", 12, "name")` without what is empty."""
    if loc == UNKNOWN:
        return
    parts = [context.files.get(loc.file) or quote(loc.file)]
    if loc.line:
        parts.append(str(loc.line))
    if loc.name:
        parts.append(quote(loc.name))
    yield f"loc({', '.join(parts)})"


def arg_str(arg: Arg) -> str:
    """Returns an argument: `%x`, `[1, 2]`, `"text"`, `f32`, `none`, `1.0`, `complex(0.0, 1.0)`."""
    if isinstance(arg, Ref):
        return value_name(arg.name)
    if isinstance(arg, tuple):
        return f"[{', '.join(map(arg_str, arg))}]"
    if isinstance(arg, str):
        return quote(arg)
    if isinstance(arg, DType):
        return arg.name if arg.name in DTYPE_BYTES else f"dtype({quote(arg.name)})"
    if isinstance(arg, complex):
        return f"complex({arg.real!r}, {arg.imag!r})"
    if isinstance(arg, Expr):
        return f"({arg})" if axes_of(arg) & RESERVED else str(arg)
    return "none" if arg is None else repr(arg).lower()


def op_call(op: Op) -> str:
    """Returns `aten.mm.default(self=%x, mat2=%w)`."""
    return f"{kind(op.kind)}({named_args(op.args)})"


def named_args(args: Sequence[tuple[str, Arg]]) -> str:
    """Returns `self=%x, mat2=%w`."""
    return ", ".join(f"{word(name)}={arg_str(arg)}" for name, arg in args)


def op_dist(dist: OpDist, context: Context) -> str:
    """Returns `{m: 8@dp, k: 768@tp; body split; pending sum@tp(0, 1); on @m1}`."""
    sections = [", ".join(f"{word(name)}: {dim_text(dim)}" for name, dim in dist.factors)]
    sections.append(f"body {word(dist.body)}" if dist.body else "")
    sections.extend(
        f"pending {pending_text(p.axis, p.monoid)}({', '.join(map(str, p.operands))})"
        for p in dist.pending
    )
    sections.append(f"on {mesh_ref(dist.mesh, context)}" if dist.mesh != context.mesh else "")
    return f"{{{'; '.join(section for section in sections if section)}}}"


def op_clauses(op: Op, context: Context) -> Iterator[str]:
    """Yields all that follows the arguments of an op."""
    if op.dist is not None:
        yield op_dist(op.dist, context)
    if context.origins and op.origin is not None:
        yield origin_str(op.origin)
    if op.stage:
        yield f"stage={op.stage}"
    if op.microbatch:
        yield f"microbatch={op.microbatch}"
    if op.loops:
        yield f"loops({', '.join(f'{word(name)}={trip}' for name, trip in op.loops)})"
    if op.phase != "forward":
        yield f"phase={word(op.phase)}"
    if op.plan:
        yield f"plan({', '.join(f'{word(name)}={word(text)}' for name, text in op.plan)})"
    yield from loc_clauses(op.loc, context)


def port_clauses(
    label: str | None,
    box: Sequence[Sequence[BoxDim]] | None,
    fill: float | None,
    aliases: Sequence[str],
    part: Part | None,
    options: Sequence[tuple[str, Arg]] = (),
) -> Iterator[str]:
    """Yields what a port says, each unless it is None, and `also "label"` for each alias.

    `as "label"`, `box [8[dp * 4; 4], 768]`, `fill 0.0`, `part "w" [16, 768] from [8, 0]` and
    `options(eps=1e-08)`.
    """
    if label is not None:
        yield f"as {quote(label)}"
    if box is not None:
        yield f"box [{', '.join(map(_box_dim, box))}]"
    if fill is not None:
        yield f"fill {fill!r}"
    for alias in aliases:
        yield f"also {quote(alias)}"
    if part is not None:
        yield f"part {quote(part.of)} {list(part.shape)} from {list(part.start)}"
    if options:
        yield f"options({named_args(options)})"


def port_line(port: Port) -> str:
    """Returns a port in full, as it stands in a signature block."""
    shape = ", ".join(map(str, port.shape))
    head = f"{value_name(port.name)}: {word(port.dtype)}[{shape}] {word(port.role)}"
    label = None if port.label == port.name else port.label
    clauses = port_clauses(
        label, port.box or None, port.fill, port.aliases, port.part, port.options
    )
    return " ".join((head, *clauses))


def _box_dim(dim: Sequence[BoxDim]) -> str:
    if len(dim) == 1:
        return _box_sub(dim[0])
    return "".join(f"({_box_sub(sub)})" for sub in dim) or "()"


def _box_sub(sub: BoxDim) -> str:
    if sub.start == 0 and sub.length == sub.size:
        return str(sub.size)
    size = f"({sub.size})" if isinstance(sub.size, Binary) else str(sub.size)
    return f"{size}[{sub.start}; {sub.length}]"
