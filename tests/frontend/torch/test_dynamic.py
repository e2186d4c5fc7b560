"""How users say which dimensions of a batch stay open, and what they are told of mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.step.dynamic import open_shapes
from autopar.ir.expr.expression import Size, shape_str

LABELS = ("ids", "target")
TENSORS = (torch.zeros(6, 10), torch.zeros(6))


def opened(dynamic: Any) -> str:
    """Returns the shapes, and what the sizes may be."""
    found = open_shapes(dynamic, LABELS, TENSORS)
    sizes = {size for shape in found.shapes for size in shape if isinstance(size, Size)}
    shapes = " ".join(map(shape_str, found.shapes))
    ranges = (f"{each.least}:{each.most}~{each.planned}" for each in sorted(sizes, key=str))
    return " ".join((shapes, *ranges))


ANY = "0:2147483647"


@pytest.mark.parametrize(
    ("dynamic", "expected"),
    [
        (None, "[6, 10] [6]"),
        ({"ids": {0: "batch"}}, f"[$batch, 10] [6] {ANY}~6"),
        ({"ids": {-1: "length=1:64"}}, "[6, $length] [6] 1:64~10"),
        ({"ids": {1: "8~1:64"}}, "[6, $ids_1] [6] 1:64~8"),
        ({0: {0: "batch"}, 1: {0: "batch=2:"}}, "[$batch, 10] [$batch] 2:2147483647~6"),
        ((["batch", None], ["batch"]), f"[$batch, 10] [$batch] {ANY}~6"),
        ({"ids": {0: 6, 1: "10"}}, "[6, 10] [6]"),
        ({"ids": {0: Dim.AUTO(min=6, max=6), 1: "length=10:10"}}, "[6, 10] [6]"),
        ({"ids": {0: Dim("b", min=2, max=9)}, "target": None}, "[$b, 10] [6] 2:9~6"),
        ({"ids": (Dim("b"), Dim("l"))}, f"[$b, $l] [6] {ANY}~6 {ANY}~10"),
        ({"ids": (Dim.DYNAMIC, Dim.STATIC)}, f"[$ids_0, 10] [6] {ANY}~6"),
        ({"ids": (Dim.AUTO(min=1, max=8), None)}, "[$ids_0, 10] [6] 1:8~6"),
        (
            {"ids": {0: "past", 1: "past + 4"}, "target": {0: "past"}},
            f"[$past, $past + 4] [$past] {ANY}~6",
        ),
    ],
)
def test_dimensions_are_opened_by_name_range_or_dim(dynamic: Any, expected: str) -> None:
    assert opened(dynamic) == expected


@pytest.mark.parametrize(
    ("dynamic", "why"),
    [
        ("batch", r'give dimensions by input, as \{"ids": \{0: "batch"\}\}'),
        ({"id": {0: "batch"}}, "no tensor 'id' in the batch; did you mean ids"),
        ({2: {0: "batch"}}, "no tensor 2 in the batch; there are: ids, target"),
        ([None, None, None], "3 entries, the batch 2 tensors: ids, target"),
        ({"ids": "batch"}, r"dynamic\['ids'\] is 'batch'; give a dict by dimension"),
        ({"target": {1: "batch"}}, r"dynamic\['target'\]: there is no dimension 1; it has 1"),
        ({"ids": {0: 7}}, r"dynamic\['ids'\]\[0\] is 7, and the example has 6 there"),
        ({"ids": {0: 1.5}}, r"1.5 is no size; give a name, as \"batch\""),
        ({"ids": {0: "a b=1:"}}, "'a b' is no name"),
        ({"ids": {0: "batch=9:1"}}, "no size is at least 9 and at most 1"),
        ({"ids": {0: "batch=7:"}}, "the example has 6 there; batch is at least 7"),
        ({"ids": {0: "n", 1: "n"}}, "are both 'n', and the example has 6 and 10 there"),
        ({"ids": {0: "n=1:8"}, "target": {0: "n=1:9"}}, "are both 'n', with two ranges"),
        ({"ids": {0: "n", 1: "n + m"}}, r"\[1\]: 'n \+ m' is no sum of names .*; there are n"),
        ({"ids": {0: "n", 1: "n + 3"}}, "is 'n \\+ 3', 9 in the example, but that has 10 there"),
        ({"ids": {0: 2 * Dim("half")}}, r"2\*half follows from another size"),
    ],
)
def test_mistakes_are_refused_with_their_place(dynamic: Any, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        opened(dynamic)
