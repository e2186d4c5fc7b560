"""Layouts as text: what is written is read, and what can't be read is said."""

from __future__ import annotations

import pytest
from hypothesis import given

from autopar.base.errors import AnnotationError
from autopar.ir.layout import Layout, SubDim
from autopar.ir.text.cursor import Cursor
from autopar.ir.text.layouts import (
    Entry,
    LayoutParser,
    dim_text,
    dims_mapping_text,
    parse_dims_mapping,
)
from tests.ir.strategies import layouts, meshes


@given(meshes().flatmap(layouts))
def test_what_is_written_is_read(layout: Layout) -> None:
    layout = layout.normalized()
    entries = parse_dims_mapping(dims_mapping_text(layout.dims))
    read = Layout.from_dims_mapping(layout.mesh, layout.shape, entries)
    assert read == Layout(layout.mesh, layout.dims)


@given(meshes().flatmap(layouts))
def test_dimensions_are_read_as_they_are_written(layout: Layout) -> None:
    for dim in layout.dims:
        assert LayoutParser(Cursor(dim_text(dim), "text")).dim() == dim


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
