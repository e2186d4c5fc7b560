"""The layout algebra against a brute force that lists every element of every process."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.base.errors import AnnotationError
from autopar.ir.dims import (
    DimLayout,
    SubDim,
    dim_size,
    dim_str,
    factorize_dim,
    local_dim_size,
    local_extent,
    normalize_dim,
)
from autopar.ir.dims_mapping import DimMapping
from autopar.ir.expr.expression import evaluate
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from tests.ir import strategies

MESHES = [
    ProcessMesh.of_shape((4,), ("a",)),
    ProcessMesh.of_shape((2, 3), ("a", "b")),
    ProcessMesh.of_shape((2, 2), ("a", "b")),
    ProcessMesh.of_shape((3, 1, 2), ("a", "one", "b")),
]
SIZES = (*range(1, 13), 16, 18, 24)

Pieces = tuple[tuple[int, ...], ...]


def factorizations(size: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a size as a product of at most so many factors above 1."""
    yield (size,)
    if most > 1:
        for first in range(2, size):
            if size % first == 0:
                yield from ((first, *rest) for rest in factorizations(size // first, most - 1))


def placements(axes: Sequence[str], count: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All ways to split so many sub-dimensions over some of the axes, in any order."""
    for places in itertools.product(range(-1, count), repeat=len(axes)):
        groups = [
            [a for a, place in zip(axes, places, strict=True) if place == at] for at in range(count)
        ]
        yield from itertools.product(*(itertools.permutations(group) for group in groups))


def every_dim(size: int, mesh: ProcessMesh, most: int = 3) -> Iterator[DimLayout]:
    """All layouts of a dimension with at most so many sub-dimensions above 1."""
    axes = tuple(name for name, count in mesh.axis_sizes().items() if count > 1)
    for factors in factorizations(size, most):
        for placed in placements(axes, len(factors)):
            yield tuple(map(SubDim, factors, placed))


def piece(dim: DimLayout, mesh: ProcessMesh, position: int) -> tuple[int, ...]:
    """The elements of a dimension that a process holds, in order."""
    coords = mesh.coordinates(position)
    held: list[range] = []
    for sub in dim:
        start, length = (evaluate(expr, coords) for expr in local_extent(sub, mesh))
        held.append(range(start, start + length))
    elements: list[int] = []
    for indices in itertools.product(*held):
        element = 0
        for sub, index in zip(dim, indices, strict=True):
            element = element * sub.size + index
        elements.append(element)
    return tuple(elements)


def pieces(dim: DimLayout, mesh: ProcessMesh) -> Pieces:
    """What each process holds."""
    return tuple(piece(dim, mesh, position) for position in range(mesh.size))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_normal_forms_are_equal_iff_all_processes_hold_the_same(mesh: ProcessMesh) -> None:
    for size in SIZES:
        forms: dict[Pieces, set[DimLayout]] = defaultdict(set)
        for dim in every_dim(size, mesh):
            held, form = pieces(dim, mesh), normalize_dim(dim, mesh)
            assert pieces(form, mesh) == held, dim
            assert normalize_dim(form, mesh) == form, dim
            forms[held].add(form)
        for held, equal in forms.items():
            # The exception that `normalize_dim` states.
            several = any(len(sub.axes) > 1 for form in equal for sub in form)
            assert len(equal) == 1 or (several and () in held), equal


@pytest.mark.parametrize("mesh", MESHES[:3], ids=str)
def test_factors_put_together_are_what_was_cut(mesh: ProcessMesh) -> None:
    cut = 0
    for size in (6, 8, 12):
        for dim in every_dim(size, mesh, most=2):
            for sizes in factorizations(size, 3):
                factors = factorize_dim(dim, sizes, mesh)
                if factors is None:
                    continue
                cut += 1
                assert tuple(dim_size(factor) for factor in factors) == sizes
                together = normalize_dim(sum(factors, ()), mesh)
                assert together == normalize_dim(dim, mesh), (dim, sizes)
    assert cut > 50


@pytest.mark.parametrize("mesh", MESHES[:3], ids=str)
def test_what_was_put_together_can_be_cut(mesh: ProcessMesh) -> None:
    for sizes in ((2, 3), (4, 3), (3, 4), (6, 2)):
        for axes in placements(mesh.dim_names, 2):
            parts = tuple((SubDim(size, names),) for size, names in zip(sizes, axes, strict=True))
            factors = factorize_dim(normalize_dim(sum(parts, ()), mesh), sizes, mesh)
            assert factors is not None, parts
            for factor, part in zip(factors, parts, strict=True):
                assert pieces(factor, mesh) == pieces(part, mesh)


@given(st.integers(min_value=0, max_value=40), st.sampled_from(MESHES), st.data())
def test_blocks_cover_a_sub_dimension_exactly_once(
    size: int, mesh: ProcessMesh, data: st.DataObject
) -> None:
    axes = data.draw(st.permutations(mesh.dim_names))
    sub = SubDim(size, tuple(axes[: data.draw(st.integers(min_value=1, max_value=len(axes)))]))
    held = [piece((sub,), mesh, position) for position in range(mesh.size)]
    copies = mesh.size // mesh.axes_size(sub.axes)
    assert sorted(element for part in held for element in part) == sorted([*range(size)] * copies)
    # Blocks are numbered with the first axis as the major one, and none is larger than the first.
    numbers = [mesh.coordinates(position) for position in range(mesh.size)]
    order = sorted(range(mesh.size), key=lambda at: [numbers[at][axis] for axis in sub.axes])
    assert [e for at in order[::copies] for e in held[at]] == list(range(size))
    assert all(len(part) <= len(held[0]) for part in held)


@given(st.sampled_from(MESHES), st.data())
def test_the_local_size_is_that_of_the_piece(mesh: ProcessMesh, data: st.DataObject) -> None:
    dim = data.draw(strategies.dim_layouts(mesh.dim_names))
    size = local_dim_size(dim, mesh)
    for position, held in enumerate(pieces(dim, mesh)):
        assert evaluate(size, mesh.coordinates(position)) == len(held)


@pytest.mark.parametrize(
    ("dim", "sizes", "expected"),
    [
        ("12@a", (4, 3), "4@a, 3"),
        ("12@a", (12, 1), "12@a, 1"),
        ("12", (3, 2, 2), "3, 2, 2"),
        ("10@a", (5, 2), "None"),
        ("(4@a)(6)", (8, 3), "(4@a)(2), 3"),
        ("(3)(4@a)", (12,), "(3)(4@a)"),
        ("12@a", (3, 4), "None"),
        ("(3)(4@a)", (3, 4), "3, 4@a"),
        ("12", (5, 3), "None"),
        ("12", (4,), "None"),
    ],
)
def test_cutting_by_example(dim: str, sizes: tuple[int, ...], expected: str) -> None:
    factors = factorize_dim(parse_dim(dim), sizes, MESHES[0])
    assert (", ".join(map(dim_str, factors)) if factors is not None else "None") == expected


def parse_dim(text: str) -> DimLayout:
    """The inverse of `dim_str`, for one axis a sub-dimension."""
    subs = text.strip("()").split(")(")
    split = [sub.partition("@") for sub in subs]
    return tuple(SubDim(int(size), (axis,) if axis else ()) for size, _, axis in split)


MESH = ProcessMesh.of_shape((2, 4), ("dp", "tp"))


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ((-1, None), "[8, 12]"),
        (("dp", -1), "[8@dp, 12]"),
        ((0, 1), "[8@dp, 12@tp]"),
        ((("tp", "dp"), ()), "[8@(tp,dp), 12]"),
        (((1, 0), -1), "[8@(tp,dp), 12]"),
        ((-1, ("dp",)), "[8, 12@dp]"),
    ],
)
def test_dims_mappings(mapping: Sequence[DimMapping], expected: str) -> None:
    layout = Layout.from_dims_mapping(MESH, (8, 12), mapping)
    assert str(layout) == expected
    assert Layout.from_dims_mapping(MESH, (8, 12), layout.dims_mapping) == layout


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            ("dp",),
            r"dims_mapping \['dp'\] has 1 entry, but the tensor has 2 dimensions \[8, 12\]",
        ),
        (("dp", "dp"), "uses mesh axis dp more than once; an axis can split one dimension"),
        ((("tp", 1), -1), "uses mesh axis tp more than once"),
        (("pp", -1), r"mesh has no axis 'pp', only \['dp', 'tp'\]"),
        ((2, -1), "mesh axis 2 is out of range"),
        ((-2, -1), "dims_mapping entry -2: use -1 for 'not split'"),
    ],
)
def test_dims_mappings_that_are_refused(mapping: Sequence[DimMapping], message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        Layout.from_dims_mapping(MESH, (8, 12), mapping)


def test_what_a_layout_tells() -> None:
    layout = Layout.from_dims_mapping(MESH, (8, 10), [-1, "tp"]).with_partial({"dp": "sum"})
    assert layout.shape == (8, 10)
    assert str(layout) == "[8, 10@tp] sum@dp"
    assert [str(size) for size in layout.local_shape] == ["8", "max(0, min(3, tp * -3 + 10))"]
    assert (layout.sharded_axes, layout.partial_axes) == (("tp",), ("dp",))
    assert not layout.is_replicated
    assert not layout.without_partial().is_replicated
    assert Layout.replicated(MESH, (8,)).is_replicated
    assert not Layout(MESH, (), mask=(0,)).is_replicated


def test_partials_are_in_the_order_of_the_mesh() -> None:
    layout = Layout(MESH, ()).with_partial({"tp": "max", "dp": "max"})
    assert layout.partial == (("dp", "max"), ("tp", "max"))
    assert Layout(MESH, (), (("tp", "sum"), ("dp", "sum"))).normalized().partial_axes == (
        "dp",
        "tp",
    )


def test_axes_of_one_process_vanish() -> None:
    mesh = ProcessMesh.of_shape((1, 4), ("one", "tp"))
    layout = Layout(mesh, ((SubDim(8, ("one", "tp")),),), (("one", "sum"),))
    assert str(layout.normalized()) == "[8@tp]"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(MESH, ((SubDim(8),),)), "layout is for shape [8], the tensor has [8, 4]"),
        (Layout(MESH, ((SubDim(8, ("pp",)),), (SubDim(4),))), "mesh has no axis 'pp'"),
        (
            Layout(MESH, ((SubDim(8, ("tp",)),), (SubDim(4),)), (("tp", "sum"),)),
            "mesh axis 'tp' is used more than once",
        ),
        (Layout(MESH, ((SubDim(8),), (SubDim(4),)), (("tp", "mean"),)), "unknown reduction 'mean'"),
    ],
)
def test_what_is_inconsistent(layout: Layout, message: str) -> None:
    assert layout.problems((8, 4)) == [message]
