"""Meshes: what they are made of, their slices, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from autopar.base.errors import AnnotationError
from autopar.ir.fixed import Index, index_of_text, index_text
from autopar.ir.mesh import ProcessMesh
from tests.ir import strategies

MESH = ProcessMesh([[0, 1, 2, 3], [4, 5, 6, 7]], dim_names=["dp", "tp"])


def test_what_a_mesh_tells() -> None:
    assert MESH.shape == MESH.topology == (2, 4)
    assert (MESH.ndim, MESH.size) == (2, 8)
    assert MESH.process_ids == MESH.process_group == tuple(range(8))
    assert MESH.axis_sizes() == {"dp": 2, "tp": 4}
    assert (MESH.axis_index("tp"), MESH.axis_index(-1), MESH.axis_size("tp")) == (1, 1, 4)
    assert MESH.axis_index("1") == 1
    assert MESH.axes_size(("dp", "tp")) == 8
    assert repr(MESH) == "ProcessMesh(dp=2, tp=4)"


def test_equal_meshes_are_equal_however_they_were_made() -> None:
    others = [
        ProcessMesh(np.arange(8).reshape(2, 4), ["dp", "tp"]),
        ProcessMesh(((0, 1, 2, 3), (4, 5, 6, 7)), ("dp", "tp")),
        ProcessMesh.of_shape([2, 4], ["dp", "tp"]),
    ]
    assert all(other == MESH and hash(other) == hash(MESH) for other in others)
    assert all(other.ids == range(8) for other in others)


@pytest.mark.parametrize(
    "other",
    [
        ProcessMesh.of_shape((2, 4), ("dp", "pp")),
        ProcessMesh.of_shape((4, 2), ("dp", "tp")),
        ProcessMesh([[1, 0, 2, 3], [4, 5, 6, 7]], ("dp", "tp")),
        ProcessMesh([[0, 1, 2, 3], [4, 5, 6, 7]], ("dp", "tp"), parent=MESH),
    ],
)
def test_different_meshes_differ(other: ProcessMesh) -> None:
    assert other != MESH


def test_axes_have_names_by_default() -> None:
    assert ProcessMesh([[0, 1]]).dim_names == ("d0", "d1")


def test_slices_know_where_they_come_from() -> None:
    part = MESH["tp", -1]
    assert (part.process_ids, part.shape, part.dim_names) == ((3, 7), (2,), ("dp",))
    assert (part.parent, part.fixed) == (MESH, (("tp", 3),))
    assert part[1].process_ids == (7,)
    assert part[1].fixed == (("tp", 3), ("dp", 1))
    assert part[1].coordinates(0) == {"tp": 3, "dp": 1}
    assert [row.process_ids for row in MESH] == [(0, 1, 2, 3), (4, 5, 6, 7)]


@given(strategies.meshes())
def test_slices_along_an_axis_hold_every_process_once(mesh: ProcessMesh) -> None:
    for axis in mesh.dim_names:
        pieces = [mesh[axis, at] for at in range(mesh.axis_size(axis))]
        assert sorted(p for piece in pieces for p in piece.process_ids) == sorted(mesh.process_ids)
        for at, piece in enumerate(pieces):
            assert piece.shape == tuple(
                size for name, size in mesh.axis_sizes().items() if name != axis
            )
            for position, process in enumerate(piece.process_ids):
                where = mesh.coordinates(mesh.process_ids.index(process))
                assert where[axis] == at
                assert piece.coordinates(position) == where


@given(strategies.meshes())
def test_coordinates_number_the_processes(mesh: ProcessMesh) -> None:
    position = 0
    for name, size in mesh.axis_sizes().items():
        position = position * size + mesh.coordinates(mesh.size - 1)[name]
    assert position == math.prod(mesh.shape) - 1 == mesh.size - 1


@pytest.mark.parametrize(
    ("mesh", "names", "message"),
    [
        ([], None, "rectangular, non-empty array"),
        ([[0, 1], [2]], None, "rectangular, non-empty array"),
        ([[0, 1], 2], None, "rectangular, non-empty array"),
        ([0, [1]], None, "process ids >= 0"),
        (3, None, "process ids >= 0"),
        ([0, -1], None, "process ids >= 0"),
        ([0.0, 1.0], None, "process ids >= 0"),
        ([True, False], None, "process ids >= 0"),
        ([1, 1], None, "names a process more than once"),
        ([0, 1], ["a", "b"], "2 dim_names .* for a 1-d mesh"),
        ([[0, 1]], ["a", "a"], "names must differ"),
        ([0, 1], ["2x"], "must be identifiers"),
        ([0, 1], ["min"], "not min, max"),
        ([0, 1], ["Null"], "not min, max, None, null"),
    ],
)
def test_meshes_that_are_refused(mesh: object, names: list[str] | None, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        ProcessMesh(mesh, names)


@pytest.mark.parametrize("shape", [(), (0, 4), (2, -1)])
def test_shapes_that_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(AnnotationError, match="every axis needs at least 1 process"):
        ProcessMesh.of_shape(shape)


def test_what_is_not_in_a_mesh() -> None:
    with pytest.raises(AnnotationError, match=r"no axis 'tpp', only \['dp', 'tp'\]; did you mean"):
        MESH.axis_size("tpp")
    with pytest.raises(AnnotationError, match="mesh axis 2 is out of range for mesh d"):
        MESH.axis_index(2)
    with pytest.raises(AnnotationError, match="index 4 is outside axis 'tp'"):
        MESH["tp", 4]
    with pytest.raises(AnnotationError, match=r"mesh\['tp'\] needs an index too"):
        MESH["tp"]
    with pytest.raises(AnnotationError, match=r"processes outside its parent: \[9\]"):
        ProcessMesh([0, 9], ["x"], parent=MESH)


def test_slices_are_the_same_in_whichever_order_they_are_taken() -> None:
    mesh = ProcessMesh.of_shape((2, 3, 2), ["a", "b", "c"])
    one = mesh.at([("c", 1), ("a", 0)])
    assert one == mesh.at({"a": 0, "c": 1}.items()) == mesh["a", 0]["c", 1]
    assert mesh.slice_of(mesh["c", 1]["a", 0]) == one
    assert one.root == mesh
    assert mesh.at([]) is mesh


@pytest.mark.parametrize(
    ("part", "fixed"),
    [
        (ProcessMesh([4, 5, 6, 7], ["x"]), (("dp", 1),)),
        (ProcessMesh([1, 5]), (("tp", 1),)),
        (ProcessMesh([6], parent=MESH), None),
        (ProcessMesh([[4, 5, 6, 7]]), None),
        (ProcessMesh([5, 4, 6, 7], parent=MESH), None),
        (ProcessMesh([0, 5], parent=MESH), None),
        (ProcessMesh([0, 8]), None),
        (ProcessMesh([[0, 1, 2, 3], [4, 5, 6, 7]], ["a", "b"]), ()),
    ],
)
def test_processes_make_up_a_slice_or_not(
    part: ProcessMesh, fixed: tuple[tuple[str, int], ...] | None
) -> None:
    found = MESH.slice_of(part)
    assert (None if found is None else found.fixed) == fixed


def test_a_run_has_the_axis_as_one_of_its_own() -> None:
    run = MESH["tp", 1:3]
    assert (run.process_ids, run.shape, run.dim_names) == ((1, 2, 5, 6), (2, 2), ("dp", "tp"))
    assert (run.fixed, run.runs, run.place) == (
        (("tp", range(1, 3)),),
        {"tp": range(1, 3)},
        "tp=1..2",
    )
    assert (run.first("tp"), run.first("dp")) == (1, 0)
    assert run.coordinates(2) == {"dp": 1, "tp": 1}
    assert run != MESH.box("tp", [1, 2])
    assert run == MESH.at(run.fixed) == MESH.run("tp", range(1, 3)) == MESH.part("tp", range(1, 3))
    assert MESH["tp", :] == MESH
    assert MESH["tp", 3:] == MESH["tp", 3]
    assert MESH.slice_of(run) == run


def test_parts_of_a_run_are_parts_of_the_mesh() -> None:
    run = MESH["tp", 1:4]
    assert run["tp", 0] == MESH["tp", 1]
    assert run["tp", 1:3] == MESH["tp", 2:4]
    assert run.box("tp", [0, 2]) == MESH.box("tp", [1, 3])
    assert run["dp", 1].process_ids == (5, 6, 7)
    assert run["dp", 1]["tp", 0].process_ids == (5,)


@pytest.mark.parametrize("indices", [range(2, 2), range(2, 6), range(0, 4, 2), range(3, 1, -1)])
def test_what_is_no_run_is_refused(indices: range) -> None:
    with pytest.raises(AnnotationError, match="is no run of the indices of axis 'tp' of dp=2,tp=4"):
        MESH.run("tp", indices)


@pytest.mark.parametrize(
    ("text", "index"),
    [("1", 1), ("0+2", (0, 2)), ("2+0", (0, 2)), ("0..2", range(3)), ("1..1", 1)],
)
def test_places_along_an_axis_are_text(text: str, index: Index) -> None:
    assert index_of_text(text) == index
    assert index_of_text(index_text(index)) == index


@pytest.mark.parametrize("text", ["", "a", "1..", "2..1", "0:2", "-1", "1+", "0..2+4"])
def test_other_texts_are_no_places(text: str) -> None:
    assert index_of_text(text) is None
