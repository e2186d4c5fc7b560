"""Layouts as text: what is written is read, and what can't be read is said."""

from __future__ import annotations

import pytest
from hypothesis import given

from autopar.base.errors import AnnotationError
from autopar.ir.dims import DimLayout, SubDim
from autopar.ir.expr.expression import ceildiv, maximum
from autopar.ir.layout import Layout
from autopar.ir.text.cursor import Cursor, TextError
from autopar.ir.text.layouts import (
    Entry,
    LayoutParser,
    dim_text,
    dims_mapping_text,
    parse_dims_mapping,
)
from tests.ir.strategies import OPEN, layouts, meshes

BATCH, LENGTH = OPEN[:2]


@given(meshes().flatmap(lambda mesh: layouts(mesh, open_sizes=OPEN)))
def test_what_is_written_is_read(layout: Layout) -> None:
    layout = layout.normalized()
    entries = parse_dims_mapping(dims_mapping_text(layout.dims))
    read = Layout.from_dims_mapping(layout.mesh, layout.shape, entries)
    assert read == Layout(layout.mesh, layout.dims)


@given(meshes().flatmap(layouts))
def test_dimensions_are_read_as_they_are_written(layout: Layout) -> None:
    for dim in layout.dims:
        assert LayoutParser(Cursor(dim_text(dim), "text")).dim() == dim


@given(meshes().flatmap(lambda mesh: layouts(mesh, open_sizes=OPEN)))
def test_dimensions_of_open_sizes_are_read_as_they_are_written(layout: Layout) -> None:
    for dim in layout.dims:
        cursor = Cursor(f"{dim_text(dim)}, 3", "text")
        cursor.sizes.update((size.name, size) for size in OPEN)
        assert LayoutParser(cursor).dim() == dim
        assert cursor.sign(",")


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        ((SubDim(BATCH),), "$batch"),
        ((SubDim(BATCH, ("dp",)),), "$batch@dp"),
        ((SubDim(BATCH * 2 + 1),), "$batch * 2 + 1"),
        ((SubDim(BATCH * 2, ("dp", "tp")),), "($batch * 2)@(dp,tp)"),
        ((SubDim(ceildiv(BATCH, 2), ("dp",)),), "(($batch + 1) // 2)@dp"),
        ((SubDim(maximum(BATCH, 2), ("dp",)),), "(max($batch, 2))@dp"),
        ((SubDim(BATCH, ("dp",)), SubDim(LENGTH)), "($batch@dp)($length)"),
        ((SubDim(BATCH + 1, ("dp",)), SubDim(4)), "(($batch + 1)@dp)(4)"),
        ((SubDim(4), SubDim(BATCH * 2)), "(4)($batch * 2)"),
    ],
)
def test_what_dimensions_of_open_sizes_look_like(dim: DimLayout, text: str) -> None:
    assert dim_text(dim) == text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("$batch@dp", "expected an open size that is declared, got $batch"),
        ("tp@dp", "expected a size, got tp"),
        ("(tp + 1)@dp", "a global size doesn't depend on mesh axes, as tp"),
        ("(4)(min(tp, 2)@dp)", "a global size doesn't depend on mesh axes, as tp"),
    ],
)
def test_what_is_no_global_size(text: str, what: str) -> None:
    with pytest.raises(TextError) as error:
        LayoutParser(Cursor(text, "text")).dim()
    assert error.value.what == what


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("[]", ()),
        ("[-1, None, null, 'None']", (-1, None, None, None)),
        ("[tp, 'tp', \"tp\", 1,]", ("tp", "tp", "tp", 1)),
        (" [(dp,tp), [dp, 1], ()] ", (("dp", "tp"), ("dp", 1), ())),
        ("[(3)]", ((3,),)),
        ("[(3)(12@tp)( 64 )]", ((SubDim(3), SubDim(12, ("tp",)), SubDim(64)),)),
        ("[(8@(dp, tp))(7), tp]", ((SubDim(8, ("dp", "tp")), SubDim(7)), "tp")),
    ],
)
def test_entries(text: str, entries: tuple[Entry, ...]) -> None:
    assert parse_dims_mapping(text) == entries


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it must be a list in brackets"),
        ("5", "it must be a list in brackets"),
        ("(dp, tp)", "it must be a list in brackets"),
        ("[dp", "expected ',' or ']', got the end of the text"),
        ("[dp tp]", "expected ',' or ']', got tp"),
        ("[2x]", "expected -1, a mesh axis, or several in parentheses, got 2x"),
        ("[dp,,tp]", "expected -1, a mesh axis, or several in parentheses, got ,"),
        ("[*]", "expected -1, a mesh axis, or several in parentheses, got *"),
        ("[(dp]", "expected ',' or ')', got ]"),
        ("[[dp,tp)]", "expected ',' or ']', got )"),
        ("[(dp,(tp))]", "expected -1, a mesh axis, or several in parentheses, got ("),
        ("[(dp, None)]", "what is no axis can't be one of several axes"),
        ("[(3)(tp)]", "expected a size, got tp"),
        ("[(3)(12@4)]", "expected a mesh axis, got 4"),
        ("[dp] tp", "expected nothing behind the list, got tp"),
    ],
)
def test_what_can_not_be_read(text: str, what: str) -> None:
    with pytest.raises(AnnotationError) as error:
        parse_dims_mapping(text)
    expected = "write one entry per dimension, as [-1, tp, (dp,tp)]"
    assert str(error.value) == f"dims_mapping {text!r}: {what}; {expected}"
