"""The algebra of splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.completion.problem.splits import SplitTable
from autopar.ir.dims import DimLayout, SubDim, dim_axes, dim_size, dim_str
from autopar.ir.mesh import ProcessMesh

MESH = ProcessMesh.of_shape((2, 3, 2), ["a", "b", "c"])
TABLE = SplitTable(MESH)


def dims(axes: tuple[str, ...]) -> st.SearchStrategy[DimLayout]:
    """Layouts of a dimension of 24 in which each of these axes splits something."""
    shapes = st.sampled_from([(24,), (12, 2), (4, 6), (2, 12), (2, 3, 4), (2, 2, 6)])

    def assign(shape: tuple[int, ...], spots: list[int]) -> DimLayout:
        placed: list[list[str]] = [[] for _ in shape]
        for axis, spot in zip(axes, spots, strict=True):
            placed[spot % len(shape)].append(axis)
        return tuple(SubDim(s, tuple(p)) for s, p in zip(shape, placed, strict=True))

    spots = st.lists(st.integers(0, 5), min_size=len(axes), max_size=len(axes))
    return st.builds(assign, shapes, spots)


@given(dims(("a", "b")), dims(("c",)))
def test_a_composition_holds_both_parts(one: DimLayout, other: DimLayout) -> None:
    both = TABLE.compose(one, other)
    if both is not None:
        assert dim_size(both) == 24
        assert sorted(dim_axes(both)) == ["a", "b", "c"]


@given(dims(("a", "b", "c")))
def test_what_is_taken_away_can_be_put_back(dim: DimLayout) -> None:
    splits = TABLE.splits_of({"f": TABLE.restrict(dim, ("a", "b", "c"))})
    less = TABLE.without(splits, "b")
    assert set(less.places) == {"a", "c"}
    assert TABLE.merged(less, "b", splits) is splits


def test_equal_splits_are_one_object() -> None:
    assert TABLE.splits_of({"f": (SubDim(8, ("a",)),)}) is TABLE.splits_of(
        {"f": (SubDim(8, ("a",)),), "g": ()}
    )
    assert TABLE.splits_of({"f": (SubDim(8),)}) is TABLE.none


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [((), "36@(b,a)"), ((6, 6), "36@(b,a)"), ((5, 7), "36@(b,a)")],
)
def test_nested_axes_are_minor_and_keep_to_cuts(cuts: tuple[int, ...], expected: str) -> None:
    outer = TABLE.splits_of({0: (SubDim(36, ("b",)),)})
    inner = TABLE.splits_of({0: (SubDim(36, ("a",)),)})
    found = TABLE.nested(outer, "a", inner, {0: cuts} if cuts else {})
    assert found is not None
    assert dim_str(found.items[0]) == expected


def test_an_axis_keeps_its_stride_when_others_are_taken_away() -> None:
    splits = TABLE.splits_of({0: (SubDim(24, ("a", "b", "c")),)})
    assert dim_str(TABLE.without(splits, "a").items[0]) == "(2)(12@(b,c))"
    assert dim_str(TABLE.without(splits, "b").items[0]) == "(6@a)(4@c)"
    assert dim_str(splits.places["c"][1]) == "(6)(4@c)"
