"""Mesh shape: the mesh for a number of devices on which the fastest plan is the fastest.

Devices are arranged along one to three axes, the outer ones along the slower links. A further axis
would let a plan do a fourth thing with every op, on top of splitting the batch, the weights and the
state; what two axes do alike, one does as well.

Every shape is searched first, without a proof. Then, in the order of what was found, a bound of its
plans is proven, and no further than until it is above the fastest plan so far: such a shape is
dropped. Only what is left is completed, which goes on with the same search, and takes presets and
memory into account.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autopar.annotate import apply_mesh
from autopar.completion import Complete
from autopar.completion.search.fastest import Search
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
        bound_seconds: What each of its plans takes at least, as far as it was proven.
        is_dropped: Whether it was dropped because of its bound.
        is_late: Whether it was left when time was up.
    """

    mesh: ProcessMesh
    seconds: float
    bound_seconds: float = 0.0
    is_dropped: bool = False
    is_late: bool = False

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.mesh.shape))
        if self.is_dropped:
            return f"{sizes} at least {human_seconds(self.bound_seconds, 4)}"
        if self.is_late:
            return sizes
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
    tried: list[Shape] = []
    problem: InvalidInputError | None = None
    fastest = math.inf
    begun = _begun(program, devices, complete)
    for mesh, searches in sorted(begun, key=lambda pair: (_found(pair[1]), pair[0].ndim)):
        if not searches or (math.isfinite(fastest) and complete.watch.is_late):
            tried.append(Shape(mesh, math.inf, is_late=True))
            continue
        complete.watch.tell(Progress(f"comparing {mesh}", fastest))
        shape = _proven(mesh, searches, fastest)
        if not shape.is_dropped and (decide is not None or _gap(shape) > PROVEN):
            planner = searches[0].graph.space.planner
            going_on = replace(complete, planner=planner, begun=searches)
            try:
                seconds = (decide or _plain)(going_on, apply_mesh(program, mesh))
            except InvalidInputError as error:
                problem, seconds = error, math.inf
            shape = replace(shape, seconds=seconds)
        tried.append(shape)
        if not shape.is_dropped:
            fastest = min(fastest, shape.seconds)
    if math.isinf(fastest) and problem is not None:
        raise problem
    return sorted(
        tried, key=lambda each: (each.is_late, each.is_dropped, each.seconds, each.mesh.ndim)
    )


def _begun(
    program: Program, devices: int, complete: Complete
) -> Iterator[tuple[ProcessMesh, tuple[Search, ...]]]:
    """Yields the shapes with the searches of the program; without, those left when time is up."""
    fastest = math.inf
    for mesh in mesh_shapes(devices):
        if math.isfinite(fastest) and complete.watch.is_late:
            yield mesh, ()
            continue
        complete.watch.tell(Progress(f"searching on {mesh}", fastest))
        # What is known of reshards is about one mesh.
        try:
            searches = replace(complete, planner=None).searches_of(apply_mesh(program, mesh))
        except AnnotationError:
            if math.isfinite(fastest):
                continue
            raise
        fastest = min(fastest, _found(searches))
        yield mesh, searches


def _found(searches: Sequence[Search]) -> float:
    """Returns the seconds of the best plan before anything is proven."""
    return min((search.find().seconds for search in searches), default=math.inf)


def _proven(mesh: ProcessMesh, searches: Sequence[Search], fastest: float) -> Shape:
    """Returns a shape with what search finds; dropped if it is slower than the fastest so far."""
    found = [search.run(above=fastest) for search in searches]
    seconds = min(each.seconds for each in found)
    bound = min(*(each.bound_seconds for each in found), seconds)
    return Shape(mesh, seconds, bound, is_dropped=bound > fastest)


def _gap(shape: Shape) -> float:
    """Returns the part of a shape's seconds that its bound leaves open."""
    return 1 - shape.bound_seconds / shape.seconds if shape.seconds else 0.0


def _plain(complete: Complete, program: Program) -> float:
    return complete.decide(program).seconds


def remark(shapes: list[Shape]) -> ReportEntry:
    """Returns what the report says of the shapes that were tried."""
    tried = [str(shape) for shape in shapes if not shape.is_dropped and not shape.is_late]
    dropped = [str(shape) for shape in shapes if shape.is_dropped]
    late = [str(shape) for shape in shapes if shape.is_late]
    text = f"of {len(shapes)} meshes of {shapes[0].mesh.size} processes: {', '.join(tried)}"
    if dropped:
        text += f"; dropped, by their bounds: {', '.join(dropped)}"
    if late:
        text += f"; left at the time limit: {', '.join(late)}"
    return ReportEntry("search", "mesh shape", text)
