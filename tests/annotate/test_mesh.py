"""The mesh option, and giving a program its mesh."""

from __future__ import annotations

import pytest

from autopar.annotate import ProcessMesh, apply_mesh, parse_mesh
from autopar.base.errors import AnnotationError
from tests.completion.networks import mlp


@pytest.mark.parametrize(
    ("text", "shape", "names"),
    [
        ("8", (8,), ("d0",)),
        ("2x4", (2, 4), ("d0", "d1")),
        (" 2X4 ", (2, 4), ("d0", "d1")),
        ("dp=2, tp=4", (2, 4), ("dp", "tp")),
    ],
)
def test_a_mesh_is_sizes_or_named_sizes(
    text: str, shape: tuple[int, ...], names: tuple[str, ...]
) -> None:
    mesh = parse_mesh(text)
    assert (mesh.shape, mesh.dim_names) == (shape, names)
    assert mesh.process_ids == tuple(range(mesh.size))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x", "a size is missing"),
        ("", "a size is missing"),
        ("dp=", "a size is missing"),
        ("0x4", "an axis of 0 processes"),
        ("2x-1", "'-1' is not a number"),
        ("2xtwo", "'two' is not a number"),
        ("dp=2,dp=3", "names must differ"),
        ("2=2", "must be identifiers"),
        ("99999x99999", "9999800001 processes"),
    ],
)
def test_a_bad_mesh_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message) as error:
        parse_mesh(text)
    assert f"mesh {text!r}" in str(error.value)


def test_a_program_keeps_its_mesh() -> None:
    program = apply_mesh(mlp(), parse_mesh("2x4"))
    assert apply_mesh(program, parse_mesh("2x4")) == program
    with pytest.raises(AnnotationError, match="use one mesh for both"):
        apply_mesh(program, ProcessMesh([0, 1]))
