"""Marks and the text in which a graph carries them."""

from __future__ import annotations

import pytest

from autopar.base.errors import AnnotationError
from autopar.ir.mark import Mark, mask_of
from autopar.ir.mesh import ProcessMesh

MESH = ProcessMesh([[4, 5], [6, 7]], ["dp", "tp"])
SCATTERED = ProcessMesh([[0, 2, 4], [1, 3, 5]], ["dp", "tp"])


@pytest.mark.parametrize(
    "mark",
    [
        Mark(),
        Mark(MESH, ("dp", -1, ("dp", "tp"), None, 1)),
        Mark(SCATTERED, ("tp",), place="a 'b'.py:3", is_gradient=True),
        Mark(SCATTERED["tp", 1], (0,)),
        Mark(ProcessMesh([2, 3], ["x"], parent=SCATTERED), (0,)),
        Mark(None, ("dp",), (("tp", "sum"), (0, "max"))),
        Mark(mask=((2, 2), (1, 0, 0, 1)), offload="cpu"),
    ],
)
def test_the_text_holds_everything(mark: Mark) -> None:
    assert Mark.parse(mark.text()) == mark


def test_the_text_is_that_of_an_argument() -> None:
    mark = Mark(MESH, ("dp", None), (("tp", "sum"),), place="model.py:3")
    mesh = '[[2, 2], ["dp", "tp"], 4, none]'
    assert mark.text() == (
        f'[{mesh}, ["dp", none], [["tp", "sum"]], none, "", "model.py:3", false]'
    )


def test_the_text_of_a_large_mesh_is_short() -> None:
    large = ProcessMesh.of_shape((64, 64), ["dp", "tp"])
    assert len(Mark(large, ("dp",)).text()) < 80


@pytest.mark.parametrize(
    "text", ["", "{}", "(1, 2)", "[1, 2]", '[none, none, [], none, "", ""]', "import os"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError, match="not the text of a mark"):
        Mark.parse(text)


def test_a_layout_has_the_pending_reductions() -> None:
    mark = Mark(MESH, ("dp", None), ((1, "sum"),))
    assert str(mark.layout((4, 6), MESH)) == "[4@dp, 6] sum@tp"
    assert Mark(offload="cpu").layout((4, 6), MESH) is None


def test_a_mask_names_processes() -> None:
    mark = Mark(mask=mask_of([[1, 0], [0, 1]]))
    assert mark.masked(MESH) == (4, 7)
    with pytest.raises(AnnotationError, match=r"a mask of shape \[2, 2\] for mesh dp=2,tp=3"):
        mark.masked(SCATTERED)
