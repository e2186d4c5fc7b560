"""The mesh option (`2x4`, `dp=2,tp=4`), and giving a program its mesh."""

from __future__ import annotations

import re
from dataclasses import replace

from autopar.ir.errors import AnnotationError
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program

MAX_PROCESSES = 2**20
"""A mesh option beyond this is taken for a slip of the finger."""

_SIZE = re.compile(r"[0-9]+")


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


def apply_mesh(program: Program, mesh: ProcessMesh) -> Program:
    """Returns the program on a mesh.

    Raises:
        AnnotationError: If the program is on another mesh already.
    """
    if program.mesh is not None and program.mesh != mesh:
        raise AnnotationError(
            f"the program is annotated for {program.mesh}, not for {mesh}; use one mesh for both"
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
