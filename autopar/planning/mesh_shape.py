"""Mesh shape: the mesh for a number of devices on which the fastest plan is the fastest.

Devices are arranged along one to three axes, the outer ones along the slower links. A further axis
would let a plan do a fourth thing with every op, on top of splitting the batch, the weights and the
state; what two axes do alike, one does as well.

Every shape is searched first, and no longer than until its bound says that it can't be the fastest.
Only what is left is completed, which takes presets and memory into account, in the order of what
search found; and a shape whose bound is above the fastest plan so far is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autopar.annotate import apply_mesh
from autopar.completion import Complete
from autopar.completion.search.fastest import Found
from autopar.completion.search.watch import Progress
from autopar.ir.errors import AnnotationError, InvalidInputError
from autopar.ir.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program
from autopar.ir.units import human_seconds

MOST_AXES = 3
"""Axes of the meshes that are tried."""

PROVEN = 0.005
"""Up to this gap a searched plan isn't compared with presets, which could gain no more."""

Decide = Callable[[Complete, Program], float]
"""Returns the seconds of a program's fastest plan, what memory takes included."""


@dataclass(frozen=True)
class Shape:
    """A mesh that was tried.

    Attributes:
        mesh: The mesh.
        seconds: Predicted serialized seconds of its fastest known plan; infinite if none fits.
        bound_seconds: What each of its plans takes at least.
        is_dropped: Whether it was dropped because of its bound.
    """

    mesh: ProcessMesh
    seconds: float
    bound_seconds: float
    is_dropped: bool = False

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.mesh.shape))
        if self.is_dropped:
            return f"{sizes} at least {human_seconds(self.bound_seconds, 4)}"
        if math.isinf(self.seconds):
            return f"{sizes} doesn't fit"
        return f"{sizes} {human_seconds(self.seconds, 4)}"


def mesh_shapes(devices: int) -> Iterator[ProcessMesh]:
    """Yields the meshes of as many processes, those of fewer axes first.

    Raises:
        InvalidInputError: If there are none.
    """
    if devices < 1:
        raise InvalidInputError(f"{devices} devices: a mesh needs at least one")
    for axes in range(1, MOST_AXES + 1):
        for sizes in _factorizations(devices, axes):
            if axes == 1 or 1 not in sizes:
                yield ProcessMesh.of_shape(sizes)


def _factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields the ordered products of `count` factors."""
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factorizations(number // first, count - 1))


def fastest_shapes(
    program: Program, devices: int, complete: Complete, decide: Decide | None = None
) -> list[Shape]:
    """Returns the shapes of a mesh, the fastest first, and those behind them that were dropped.

    Args:
        program: The serial program, without a mesh.
        devices: How many there are.
        complete: Searches on one mesh.
        decide: Completes on one mesh; by default with no limit of memory.

    Raises:
        InvalidInputError: If there are no devices, or no plan fits into memory on any shape.
    """
    searched = _searched(program, devices, complete, stops=decide is None)
    found: list[Shape] = []
    problem: InvalidInputError | None = None
    fastest = math.inf
    for shape, gap in sorted(searched, key=lambda pair: (pair[0].seconds, pair[0].mesh.ndim)):
        if shape.bound_seconds > fastest or (found and complete.watch.is_late):
            found.append(replace(shape, is_dropped=True))
            continue
        if decide is not None or gap > PROVEN:
            on_mesh = apply_mesh(program, shape.mesh)
            try:
                seconds = (decide or _plain)(replace(complete, planner=None), on_mesh)
            except InvalidInputError as error:
                problem, seconds = error, math.inf
            shape = replace(shape, seconds=seconds)
        found.append(shape)
        fastest = min(fastest, shape.seconds)
    if math.isinf(fastest) and problem is not None:
        raise problem
    return sorted(found, key=lambda each: (each.is_dropped, each.seconds, each.mesh.ndim))


def _searched(
    program: Program, devices: int, complete: Complete, *, stops: bool
) -> list[tuple[Shape, float]]:
    """Returns the shapes with what search finds, and the gap to its bound.

    Args:
        program: The serial program.
        devices: How many there are.
        complete: Searches on one mesh.
        stops: Whether a search ends once its bound is above the fastest plan so far.
    """
    fastest = math.inf
    shapes: list[tuple[Shape, float]] = []
    for mesh in mesh_shapes(devices):
        complete.watch.tell(Progress(f"searching on {mesh}", fastest))
        # What is known of reshards is about one mesh.
        try:
            search = replace(complete, planner=None).search_of(apply_mesh(program, mesh))
        except AnnotationError:
            if shapes:
                continue
            raise
        found: Found = search.run(above=fastest if stops else math.inf)
        fastest = min(fastest, found.seconds)
        bound = min(found.bound_seconds, found.seconds)
        shapes.append((Shape(mesh, found.seconds, bound), found.gap))
    return shapes


def _plain(complete: Complete, program: Program) -> float:
    return complete.decide(program).seconds


def remark(shapes: list[Shape]) -> ReportEntry:
    """Returns what the report says of the shapes that were tried."""
    tried = [str(shape) for shape in shapes if not shape.is_dropped]
    dropped = [str(shape) for shape in shapes if shape.is_dropped]
    text = f"of {len(shapes)} meshes of {shapes[0].mesh.size} processes: {', '.join(tried)}"
    if dropped:
        text += f"; dropped, by their bounds: {', '.join(dropped)}"
    return ReportEntry("search", "mesh shape", text)
