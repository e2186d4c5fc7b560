"""Meshes as users give them: text, sizes, torch's DeviceMesh; and giving a program its mesh."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Protocol

from autopar.base.arguments import shown
from autopar.base.errors import AnnotationError
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program

MAX_PROCESSES = 2**20
"""A mesh option beyond this is taken for a slip of the finger."""

_SIZE = re.compile(r"[0-9]{1,9}")


class DeviceMeshLike(Protocol):
    """What is read of a `torch.distributed.DeviceMesh`."""

    @property
    def mesh(self) -> Any:
        """The ranks, as an integer tensor."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """A name per axis."""

    def __hash__(self) -> int:
        """Equal meshes have equal hashes."""


MeshLike = ProcessMesh | DeviceMeshLike | str | int | tuple[int, ...]
"""A mesh as users give it; see `as_mesh`."""


def as_mesh(mesh: MeshLike) -> ProcessMesh:
    """Returns the mesh that a user gave.

        >>> as_mesh("dp=2,tp=4")
        ProcessMesh(dp=2, tp=4)
        >>> as_mesh((2, 4)).shape
        (2, 4)

    Args:
        mesh: A mesh, its text (`parse_mesh`), the size of its one axis, a tuple of sizes, or a
            torch DeviceMesh, whose ranks are taken for process ids.

    Raises:
        AnnotationError: If it is none of these, or the text describes no mesh.
    """
    if isinstance(mesh, ProcessMesh):
        return mesh
    if isinstance(mesh, str):
        return parse_mesh(mesh)
    if isinstance(mesh, int) and not isinstance(mesh, bool):
        return parse_mesh(str(mesh))
    if isinstance(mesh, tuple) and mesh and all(type(size) is int for size in mesh):
        return parse_mesh("x".join(map(str, mesh)))
    if hasattr(mesh, "mesh") and hasattr(mesh, "mesh_dim_names"):
        return ProcessMesh(mesh.mesh, mesh.mesh_dim_names)
    raise AnnotationError(
        f"mesh {shown(mesh)}: give a ProcessMesh, a torch DeviceMesh, a number of processes, sizes"
        " as (2, 4), or text as dp=2,tp=4"
    )


def parse_mesh(text: str) -> ProcessMesh:
    """Returns the mesh that an option describes.

        >>> parse_mesh("2x4").shape
        (2, 4)
        >>> parse_mesh("dp=2,tp=4").dim_names
        ('dp', 'tp')

    Args:
        text: Sizes joined by `x`, or `name=size` pairs joined by commas.

    Raises:
        AnnotationError: If the text is neither, a size is 0, or a name is unfit or repeated.
    """
    stripped = text.strip()
    if "=" in stripped:
        pairs = [part.partition("=") for part in stripped.split(",")]
        names = [name.strip() for name, _, _ in pairs]
        sizes = [_size(size, text) for _, _, size in pairs]
        return _mesh(text, sizes, names)
    return _mesh(text, [_size(part, text) for part in stripped.lower().split("x")], None)


def apply_mesh(program: Program, mesh: MeshLike) -> Program:
    """Returns the program on a mesh.

    Raises:
        AnnotationError: If the program is on another mesh already.
    """
    mesh = as_mesh(mesh)
    if program.mesh is not None and program.mesh != mesh:
        pins = (value.origin for value in program.main.values.values() if value.dist is not None)
        first = next((f" at {origin.detail}" for origin in pins if origin and origin.detail), "")
        raise AnnotationError(
            f"the program is annotated for mesh {program.mesh}{first}, not for {mesh}; use one"
            " mesh for both"
        )
    return replace(program, mesh=mesh)


def _size(part: str, text: str) -> int:
    part = part.strip()
    if not _SIZE.fullmatch(part):
        what = f"{part!r} is not a number" if part else "a size is missing"
        raise AnnotationError(f"mesh {text!r}: {what}; write 2x4 or dp=2,tp=4")
    if int(part) == 0:
        raise AnnotationError(f"mesh {text!r}: an axis of 0 processes holds nothing; use 1 or more")
    return int(part)


def _mesh(text: str, sizes: list[int], names: list[str] | None) -> ProcessMesh:
    total = 1
    for size in sizes:
        total *= size
    if total > MAX_PROCESSES:
        raise AnnotationError(f"mesh {text!r} has {total} processes, more than {MAX_PROCESSES}")
    try:
        return ProcessMesh.of_shape(sizes, names)
    except AnnotationError as error:
        raise AnnotationError(f"mesh {text!r}: {error}") from error
