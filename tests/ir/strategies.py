"""Hypothesis strategies for the classes of the IR."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from hypothesis import strategies as st

from autopar.base.errors import UNKNOWN, Loc
from autopar.ir.builds.manifest import FileEntry, Manifest, ReportEntry
from autopar.ir.deployment import Deployment, RankEntry
from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.expression import Binary, Coord, IntExpr, Size, ceildiv, maximum, prod
from autopar.ir.layout import MONOIDS, Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import (
    PHASES,
    ROLES,
    Arg,
    BoxDim,
    DType,
    Example,
    Function,
    Op,
    OpDist,
    Part,
    Pending,
    Port,
    Program,
    Ref,
    Signature,
    Value,
)

AXES = ("dp", "tp", "pp", "in", "f32", "none")
"""Some are words that mean something else elsewhere."""

OPEN = (Size("batch"), Size("length", 1, 64, 16), Size("dp", 0, 0, 0), Size("min", 2))
"""Open sizes; some are called as other things are."""

any_text = st.one_of(
    st.sampled_from(("", "a b", "x", 'q"\\', "line\nbreak", "\udcff", "\x00", "🙂", "~#%{}")),
    st.text(alphabet=st.characters(), max_size=6),
)
names = st.one_of(
    st.sampled_from(("x", "y", "w.1", "0", "a-b", "/layer.0/Add", "$t", "in", "return", "f32")),
    any_text,
)
fills = st.one_of(st.none(), st.floats(allow_nan=False), st.sampled_from((math.nan, 0.0, 1.0)))
words = st.one_of(st.sampled_from(("m", "k", "body", "pending", "on", "split")), any_text)
dtypes = st.sampled_from(sorted(DTYPE_BYTES))
sizes = st.integers(min_value=0, max_value=12)
origins = st.builds(Origin, st.sampled_from(("annotated", "implied", "none")), any_text)
locs = st.one_of(
    st.just(UNKNOWN),
    st.builds(
        Loc,
        st.sampled_from(("", "model.onnx", "/a/model.onnx", "1.py", "a b\n.py")),
        st.integers(min_value=0, max_value=999),
        any_text,
    ),
)


@lru_cache(maxsize=1024)
def exprs(axes: tuple[str, ...], open_sizes: tuple[Size, ...] = ()) -> st.SearchStrategy[IntExpr]:
    """Expressions of these axes and sizes, as anybody might build them, folded or not."""
    leaves: st.SearchStrategy[IntExpr] = st.integers(min_value=-9, max_value=99)
    if variables := [*map(Coord, axes), *open_sizes]:
        leaves = st.one_of(leaves, st.sampled_from(variables))
    operators = st.sampled_from(("+", "*", "//", "min", "max"))
    return st.recursive(
        leaves, lambda inner: st.builds(Binary, operators, inner, inner), max_leaves=5
    )


def folded(open_sizes: tuple[Size, ...]) -> st.SearchStrategy[IntExpr]:
    """Sizes that may be open, in the form in which equal ones look the same."""

    def sums(inner: st.SearchStrategy[IntExpr]) -> st.SearchStrategy[IntExpr]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda pair: pair[0] + pair[1]),
            pairs.map(lambda pair: pair[0] * pair[1]),
            pairs.map(lambda pair: maximum(*pair)),
            inner.map(lambda size: ceildiv(size, 3)),
        )

    leaves = st.one_of(st.sampled_from(open_sizes), st.integers(min_value=0, max_value=6))
    return st.recursive(leaves, sums, max_leaves=3)


@st.composite
def meshes(draw: st.DrawFn, max_size: int = 12, max_ndim: int = 3) -> ProcessMesh:
    """Meshes: numbered from 0 or otherwise, slices of others, and parts of others."""
    ndim = draw(st.integers(min_value=1, max_value=max_ndim))
    axes = draw(st.permutations(AXES))[:ndim]
    shape: list[int] = []
    for _ in range(ndim):
        most = max(1, max_size // math.prod(shape))
        shape.append(draw(st.integers(min_value=1, max_value=most)))
    mesh = ProcessMesh.of_shape(shape, axes)
    form = draw(st.sampled_from(("plain", "plain", "renumbered", "slice", "part")))
    if form == "renumbered":
        first = draw(st.integers(min_value=0, max_value=5))
        ids = draw(st.permutations(range(first, first + mesh.size)))
        return ProcessMesh(nest(ids, shape), axes)
    if form == "slice":
        axis = draw(st.sampled_from(axes))
        return mesh[axis, draw(st.integers(min_value=0, max_value=mesh.axis_size(axis) - 1))]
    if form == "part":
        some = mesh.process_ids[:: draw(st.integers(min_value=1, max_value=3))]
        return ProcessMesh(list(some), ["part"], parent=mesh)
    return mesh


def nest(ids: Sequence[int], shape: Sequence[int]) -> list[object]:
    """Returns numbers as nested lists of this shape."""
    nested: list[object] = list(ids)
    for size in reversed(shape[1:]):
        nested = [nested[at : at + size] for at in range(0, len(nested), size)]
    return nested


@st.composite
def dim_layouts(
    draw: st.DrawFn,
    axes: Sequence[str],
    max_subs: int = 3,
    max_sub_size: int = 6,
    open_sizes: tuple[Size, ...] = (),
) -> DimLayout:
    """Layouts of one dimension over some of these axes, each used at most once."""
    some = st.integers(min_value=1, max_value=max_sub_size)
    size_of = st.one_of(some, folded(open_sizes)) if open_sizes else some
    count = draw(st.integers(min_value=1, max_value=max_subs))
    left = list(draw(st.permutations(axes)))
    subs: list[SubDim] = []
    for _ in range(count):
        used = draw(st.integers(min_value=0, max_value=len(left)))
        taken, left = left[:used], left[used:]
        subs.append(SubDim(draw(size_of), tuple(taken)))
    return tuple(subs)


@st.composite
def layouts(
    draw: st.DrawFn, mesh: ProcessMesh, max_rank: int = 3, open_sizes: tuple[Size, ...] = ()
) -> Layout:
    """Layouts of tensors of any shape on a mesh; every axis is used at most once."""
    left = list(draw(st.permutations(mesh.dim_names)))
    pending = draw(st.integers(min_value=0, max_value=len(left)))
    partial = tuple((axis, draw(st.sampled_from(MONOIDS))) for axis in left[:pending])
    left = left[pending:]
    dims: list[DimLayout] = []
    for _ in range(draw(st.integers(min_value=0, max_value=max_rank))):
        split = dim_layouts(left, max_subs=2, open_sizes=open_sizes)
        dims.append(draw(st.one_of(st.just(()), split)))
        used = {axis for sub in dims[-1] for axis in sub.axes}
        left = [axis for axis in left if axis not in used]
    mask = draw(st.one_of(st.none(), st.just(()), st.just(mesh.process_ids[::2])))
    return Layout(mesh, tuple(dims), partial, mask, draw(st.sampled_from(("", "cpu", "a b"))))


@lru_cache(maxsize=1024)
def op_dists(mesh: ProcessMesh) -> st.SearchStrategy[OpDist]:
    """Choices on a mesh. Their factors are those of no rule in particular."""
    axis = st.sampled_from(mesh.dim_names) if mesh.dim_names else st.nothing()
    operands = st.lists(st.integers(min_value=0, max_value=3), max_size=2).map(tuple)
    pending = st.builds(Pending, axis, st.sampled_from(MONOIDS), operands)
    factors = dim_layouts(mesh.dim_names, open_sizes=OPEN)
    return st.builds(
        OpDist,
        st.just(mesh),
        st.lists(st.tuples(words, factors), max_size=2).map(tuple),
        st.one_of(st.just(""), words),
        st.lists(pending, max_size=1 if mesh.dim_names else 0).map(tuple),
    )


@lru_cache(maxsize=1024)
def args(has_values: bool, axes: tuple[str, ...]) -> st.SearchStrategy[Arg]:
    """Arguments. References are positions, which `with_operands` of the op replaces by names."""
    leaves: list[st.SearchStrategy[Arg]] = [
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from((-(1 << 63), 1 << 63, (1 << 64) - 1, -(1 << 70))),
        st.floats(allow_nan=False),
        st.sampled_from((math.nan, math.inf, -math.inf, -0.0, 1e300, 5e-324)),
        st.complex_numbers(allow_nan=False),
        any_text,
        dtypes.map(DType),
        exprs(axes, OPEN),
    ]
    if has_values:
        leaves.append(st.integers(min_value=0, max_value=9).map(lambda at: Ref(str(at))))
    leaf = st.one_of(leaves)
    lists = [
        st.lists(st.integers(min_value=-5, max_value=5), max_size=3).map(tuple),
        st.lists(leaf, max_size=3).map(tuple),
        st.lists(st.lists(leaf, max_size=2).map(tuple), max_size=2).map(tuple),
    ]
    return st.one_of(leaf, leaf, *lists)


@st.composite
def values(draw: st.DrawFn, name: str, mesh: ProcessMesh | None, level: str, role: str) -> Value:
    """Values as they occur at a level of programs."""
    layout = None
    if mesh is not None and level != "executable":
        open_sizes = draw(st.sampled_from(((), OPEN)))
        layout = draw(st.one_of(st.none(), layouts(mesh, max_rank=2, open_sizes=open_sizes)))
    if layout is not None and level == "serial":
        shape: tuple[IntExpr, ...] = layout.shape
    elif layout is not None:
        shape = layout.local_shape
    elif level == "serial" or mesh is None:
        shape = tuple(draw(st.lists(st.one_of(sizes, exprs((), OPEN)), max_size=3)))
    else:
        shape = tuple(draw(st.lists(exprs(mesh.dim_names, OPEN), max_size=2)))
    origin = draw(st.one_of(st.none(), origins)) if level != "executable" else None
    return Value(name, draw(dtypes), shape, role, layout, origin, draw(locs))


@st.composite
def functions(
    draw: st.DrawFn,
    name: str,
    mesh: ProcessMesh | None,
    level: str,
    callees: Sequence[str],
    max_ops: int = 4,
) -> Function:
    """Functions whose values are defined before use, with any ops and arguments."""
    pool = iter(draw(st.lists(names, min_size=4, max_size=14, unique=True)))
    axes = mesh.dim_names if mesh is not None else ()
    found: dict[str, Value] = {}
    for _ in range(draw(st.integers(min_value=0, max_value=3))):
        fresh = next(pool)
        found[fresh] = draw(values(fresh, mesh, level, draw(st.sampled_from(ROLES))))
    inputs = tuple(found)
    ops: list[Op] = []
    for _ in range(draw(st.integers(min_value=0, max_value=max_ops))):
        known = tuple(found)
        results = list(itertools.islice(pool, draw(st.sampled_from((0, 1, 1, 2)))))
        role = draw(st.sampled_from(("activation", "activation", "gradient", "buffer")))
        for fresh in results:
            found[fresh] = draw(values(fresh, mesh, level, role))
        ops.append(draw(_ops(known, tuple(results), mesh, axes, level, callees)))
    everything = st.sampled_from(tuple(found)) if found else st.nothing()
    outputs = draw(st.lists(everything, max_size=3)) if found else []
    aliases = draw(st.lists(st.tuples(everything, everything), max_size=2)) if found else []
    return Function(name, inputs, tuple(outputs), found, tuple(ops), tuple(aliases))


@st.composite
def _ops(
    draw: st.DrawFn,
    known: Sequence[str],
    results: tuple[str, ...],
    mesh: ProcessMesh | None,
    axes: tuple[str, ...],
    level: str,
    callees: Sequence[str],
) -> Op:
    kinds = ("aten.mm.default", "comm.all_reduce", "transformers::grouped", "weird kind", "return")
    kind = draw(st.sampled_from(kinds))
    given = tuple(draw(st.lists(st.tuples(words, args(bool(known), axes)), max_size=3)))
    calls: bool = draw(st.booleans())
    if callees and calls:
        operands = tuple(Ref(name) for name in known)
        kind, given = "call", (("callee", draw(st.sampled_from(callees))), ("operands", operands))
    complete = mesh is not None and level != "executable"
    op = Op(
        kind,
        given,
        results,
        draw(st.one_of(st.none(), op_dists(mesh))) if complete and mesh is not None else None,
        draw(st.one_of(st.none(), origins)) if complete else None,
        draw(locs),
        draw(st.sampled_from((0, 0, 3))),
        draw(st.sampled_from((0, 0, 2))),
        draw(st.sampled_from(PHASES)),
        tuple(draw(st.lists(st.tuples(words, words), max_size=2))),
    )
    if kind == "call":
        return op
    return op.with_operands([known[int(at) % len(known)] for at in op.operands])


@st.composite
def parts(draw: st.DrawFn) -> Part | None:
    if draw(st.booleans()):
        return None
    dims = draw(st.lists(st.tuples(sizes, sizes), max_size=2))
    shape, start = (tuple(dim[at] for dim in dims) for at in (0, 1))
    return Part(draw(any_text), shape, start)


@st.composite
def ports(draw: st.DrawFn, value: Value, axes: tuple[str, ...]) -> Port:
    """Ports of a value. Some say more than the value does."""
    global_size = st.one_of(sizes, folded(OPEN))
    local = exprs(axes, OPEN)
    sub = st.builds(BoxDim, global_size, local, local)
    whole = global_size.map(lambda size: BoxDim(size, 0, size))
    dims = st.lists(st.one_of(sub, whole), max_size=2).map(tuple)
    box = tuple(draw(st.lists(dims, max_size=2)))
    shape = tuple(prod(sub.size for sub in dim) for dim in box)
    if draw(st.booleans()):
        shape = tuple(draw(st.lists(global_size, max_size=2)))
    label = draw(st.one_of(st.just(value.name), any_text))
    aliases = tuple(draw(st.lists(any_text, max_size=2)))
    return Port(
        value.name,
        label,
        value.dtype,
        shape,
        value.role,
        box,
        draw(fills),
        aliases,
        draw(parts()),
        tuple(draw(st.lists(st.tuples(words, args(False, ())), max_size=2))),
    )


@st.composite
def programs(
    draw: st.DrawFn, level: str | None = None, max_functions: int = 2, max_ops: int = 4
) -> Program:
    """Programs of a level, or of any. They needn't verify, but what they refer to exists."""
    level = level or draw(st.sampled_from(("serial", "partitioned", "executable")))
    mesh = draw(st.one_of(st.none(), meshes()))
    within = draw(st.one_of(st.just(mesh), meshes()))
    called = ("layer", "2nd layer")[: draw(st.integers(min_value=0, max_value=max_functions - 1))]
    functions_ = {
        name: draw(functions(name, within, level, called if name == "main" else (), max_ops))
        for name in ("main", *called)
    }
    main = functions_["main"]
    axes = within.dim_names if within is not None else ()
    signature = Signature()
    if draw(st.booleans()):
        signature = Signature(
            tuple(draw(ports(main.values[name], axes)) for name in main.inputs),
            tuple(draw(ports(main.values[name], axes)) for name in main.outputs),
        )
    example = draw(st.one_of(st.none(), examples()))
    return Program(functions_, signature, mesh, level, draw(any_text), example)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """What an example has besides tensors."""
    plain = st.lists(st.tuples(any_text, args(False, ())), max_size=2)
    arguments = st.lists(any_text, max_size=2)
    return Example(tuple(draw(plain)), tuple(draw(plain)), tuple(draw(arguments)))


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Rank tables: of whole arrays, placed in order or not, and of irregular ranks."""
    mesh = draw(meshes(max_size=12))
    while mesh.parent is not None:
        mesh = mesh.parent
    order = list(range(mesh.size))
    if draw(st.booleans()):
        order = list(draw(st.permutations(order)))
    if draw(st.booleans()):
        order = order[: draw(st.integers(min_value=0, max_value=len(order)))]
    count = draw(st.integers(min_value=1, max_value=2))
    ranks = tuple(
        RankEntry(
            draw(st.integers(min_value=0, max_value=count - 1)),
            tuple(mesh.coordinates(position)[axis] for axis in mesh.dim_names),
            position,
        )
        for position in order
    )
    groups = {
        axis: _groups_along(mesh, axis, order)
        for axis in mesh.dim_names
        if len(order) == mesh.size and draw(st.booleans())
    }
    if ranks:
        groups["odd one"] = tuple(
            tuple(draw(st.permutations(range(len(ranks))))[:2]) for _ in range(2)
        )
    programs_ = tuple(Program({}, name=str(at), level="executable") for at in range(count))
    return Deployment(programs_, mesh.dim_names, ranks, groups)


def _groups_along(
    mesh: ProcessMesh, axis: str, order: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    rank_of = {position: rank for rank, position in enumerate(order)}
    lists: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for position in range(mesh.size):
        coords = mesh.coordinates(position)
        others = tuple((name, coords[name]) for name in mesh.dim_names if name != axis)
        lists.setdefault(others, []).append(rank_of[position])
    return tuple(tuple(members) for members in lists.values())


manifests = st.builds(
    Manifest,
    any_text,
    any_text,
    st.lists(
        st.builds(
            FileEntry,
            any_text,
            st.binary(min_size=32, max_size=32).map(bytes.hex),
            st.integers(min_value=0, max_value=1 << 40),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(
        st.builds(
            ReportEntry,
            st.sampled_from(("replicated", "ignored")),
            any_text,
            any_text,
            locs,
            st.integers(min_value=0, max_value=1 << 40),
        ),
        max_size=3,
    ).map(tuple),
)
