"""Mesh shape: the mesh for a number of devices on which the fastest plan is the fastest.

Devices are arranged along one to three axes, the outer ones along the slower links. A further axis
would let a plan do a fourth thing with every op, on top of splitting the batch, the weights and the
state; what two axes do alike, one does as well.

Shapes of few axes are searched first, which takes little time. Of those that split an axis of them
further, the ones come first whose plans are the fastest before that. A bound is proven of each
shape before anything is searched on it: once no plan can be faster than the fastest so far, by more
than a search itself is content with, the shape is dropped. So shapes that come to the same are
searched once. One search is held at a time, and of the fastest shape the plan.

Of shapes that differ only in the order of axes on the same links, as 2x4x8 and 4x2x8 where both
outer axes lead from host to host, one is searched: processes are numbered otherwise on the other,
and nothing else.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.annotate import apply_mesh
from autopar.base.collector import paused_collector
from autopar.base.errors import AnnotationError, InvalidInputError
from autopar.base.units import human_seconds
from autopar.completion.complete import Searched
from autopar.completion.plan import Plan
from autopar.completion.problem.problem import Problem
from autopar.completion.search.fastest import Search
from autopar.completion.search.learned import ROOM
from autopar.completion.search.watch import Progress, Watch
from autopar.cost import Cluster, CommunicationModel
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Program

MOST_AXES = 3
"""Axes of the meshes that are tried."""

QUICK_AXES = 2
"""Up to so many axes a search takes little time."""

PROVEN = 0.005
"""Up to this gap a searched plan isn't compared with presets, which could gain no more."""

Sizes = tuple[int, ...]
"""The shape of a mesh."""

Kind = tuple[tuple[int, ...], ...]
"""What tells meshes apart: how many members each axis has per level of links, in any order."""

Best = Callable[[Searched], tuple[float, Plan]]
"""Returns the best plan of what is searched, and its seconds, what memory takes included."""


@dataclass(frozen=True)
class Shape:
    """A mesh that was tried.

    Attributes:
        mesh: The mesh.
        seconds: Predicted serialized seconds of its fastest known plan; infinite if none fits.
        bound_seconds: What each of its plans takes at least, as far as it was proven.
        is_dropped: Whether it was dropped because of its bound.
        is_late: Whether it was left when time was up.
        is_cut: Whether time was up before its plan was proven the fastest, or nearly.
        like: The mesh with the same axes in another order whose figures these are, if there is one.
    """

    mesh: ProcessMesh
    seconds: float
    bound_seconds: float = 0.0
    is_dropped: bool = False
    is_late: bool = False
    is_cut: bool = False
    like: ProcessMesh | None = None

    def __str__(self) -> str:
        sizes = _sizes(self.mesh)
        if self.like is not None:
            return f"{sizes} as {_sizes(self.like)}"
        if self.is_dropped:
            return f"{sizes} at least {human_seconds(self.bound_seconds, 4)}"
        if self.is_late:
            return sizes
        if math.isinf(self.seconds):
            return f"{sizes} doesn't fit"
        cut = " (stopped early)" if self.is_cut else ""
        return f"{sizes} {human_seconds(self.seconds, 4)}{cut}"


def _sizes(mesh: ProcessMesh) -> str:
    return "x".join(map(str, mesh.shape))


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


@dataclass(frozen=True)
class Fastest:
    """What searching the shape of a mesh found.

    Attributes:
        shapes: The shapes, the fastest first, and those behind them that were dropped.
        plan: That on the first.
    """

    shapes: tuple[Shape, ...]
    plan: Plan

    @property
    def mesh(self) -> ProcessMesh:
        """The mesh of the fastest plan."""
        return self.shapes[0].mesh


@paused_collector()
def fastest_shape(
    program: Program,
    devices: int,
    cluster: Cluster,
    watch: Watch | None = None,
    best: Best | None = None,
) -> Fastest:
    """Returns the mesh on which the fastest plan of a program is the fastest, and that plan.

    Args:
        program: The serial program, without a mesh.
        devices: How many there are.
        cluster: The hardware.
        watch: Limits and follows the search.
        best: Decides on one mesh; by default with no limit of memory.

    Raises:
        InvalidInputError: If there are no devices, or no plan fits into memory on any shape.
    """
    comparison = _Comparison(program, cluster, watch or Watch(), best)
    return comparison.fastest_of([*mesh_shapes(devices)])


class _Comparison:
    """Tries shapes one after another.

    Attributes:
        fastest: Seconds of the fastest plan so far.
        tried: The shapes so far, by their sizes.
        count: How many shapes there are.
    """

    def __init__(self, program: Program, cluster: Cluster, watch: Watch, best: Best | None) -> None:
        self.program, self.cluster, self.watch = program, cluster, watch
        self.is_limited = best is not None
        self.best = best or _best
        self.fastest = math.inf
        self.tried: dict[Sizes, Shape] = {}
        self.count = 0
        self._alike: dict[Kind, Shape] = {}
        self._plan: Plan | None = None
        self._problem: InvalidInputError | None = None

    def fastest_of(self, meshes: Sequence[ProcessMesh]) -> Fastest:
        """Tries shapes, those of fewer axes first."""
        self.count = len(meshes)
        for axes in range(1, MOST_AXES + 1):
            some = [mesh for mesh in meshes if mesh.ndim == axes]
            for mesh in sorted(some, key=lambda mesh: _promise(mesh.shape, self.tried)):
                self._try(mesh)
        if self._plan is None:
            assert self._problem is not None
            raise self._problem
        shapes = sorted(
            self.tried.values(),
            key=lambda each: (each.is_late, each.is_dropped, each.seconds, each.mesh.ndim),
        )
        return Fastest(tuple(shapes), self._plan)

    def _try(self, mesh: ProcessMesh) -> None:
        watch = self.watch
        if self._plan is not None and watch.is_late:
            self.tried[mesh.shape] = Shape(mesh, math.inf, is_late=True)
            return
        kind = _kind(self.cluster, mesh)
        same = self._alike.get(kind)
        if same is not None:
            self.tried[mesh.shape] = replace(same, mesh=mesh, like=same.mesh)
            return
        told = watch.on(self._part(mesh))
        told.tell(Progress("begun"))
        try:
            problem = Problem.from_program(apply_mesh(self.program, mesh), self.cluster)
            if problem.places.are_slices:
                raise AnnotationError("only a program on a single mesh is searched")
            searched = Searched(problem, told)
        except AnnotationError:
            if self._plan is None:
                raise
            return
        shape = self._compared(mesh, searched)
        is_cut = watch.is_late and not shape.is_dropped and _gap(shape) > PROVEN
        self.tried[mesh.shape] = replace(shape, is_cut=is_cut)
        if not any(search.graph.annotated or search.graph.decided for search in searched.searches):
            self._alike[kind] = self.tried[mesh.shape]
        # What a search learned is full of cycles, and all of it is young.
        del searched
        gc.collect(0)

    def _part(self, mesh: ProcessMesh) -> str:
        """Returns which shape comes next, and the best so far."""
        part = f"searching {_sizes(mesh)} ({len(self.tried) + 1} of {self.count})"
        if math.isinf(self.fastest):
            return part
        return f"{part}, best so far {human_seconds(self.fastest, 4)}"

    def _compared(self, mesh: ProcessMesh, searched: Searched) -> Shape:
        """Returns a shape as it compares with the fastest so far, whose place it may take."""
        searches = searched.searches
        above = self.fastest * (1 - _precision(searches[0], mesh))
        if math.isfinite(above):
            bound = min(search.rule_out(above) for search in searches)
            if bound > above:
                return Shape(mesh, math.inf, bound, is_dropped=True)
        shape = _searched(mesh, searches, above)
        if shape.bound_seconds > above and shape.seconds >= self.fastest:
            return replace(shape, is_dropped=True)
        if not self.is_limited and shape.seconds >= self.fastest and _gap(shape) <= PROVEN:
            return shape
        try:
            seconds, plan = self.best(searched)
        except InvalidInputError as error:
            self._problem = error
            return replace(shape, seconds=math.inf)
        if self._plan is None or seconds < self.fastest:
            self.fastest, self._plan = seconds, plan
        return replace(shape, seconds=seconds)


def _kind(cluster: Cluster, mesh: ProcessMesh) -> Kind:
    """Returns the same for meshes between which the order of axes on the same links differs."""
    model = CommunicationModel(cluster, mesh)
    return tuple(sorted(model.span((axis,)) for axis in mesh.dim_names))


def _precision(search: Search, mesh: ProcessMesh) -> float:
    """Returns by which part a plan on a shape has to be faster to be worth a search.

    Of large programs on many axes, by what a search on one shape may leave, too.
    """
    is_quick = search.learned.is_small or mesh.ndim <= QUICK_AXES
    return search.learned.precision if is_quick else max(search.learned.precision, ROOM)


def _promise(sizes: Sizes, tried: Mapping[Sizes, Shape]) -> float:
    """Returns about the seconds of a shape: those of one that joins two neighbouring axes."""
    joined = (
        (*sizes[:index], sizes[index] * sizes[index + 1], *sizes[index + 2 :])
        for index in range(len(sizes) - 1)
    )
    shapes = [tried[coarse] for coarse in joined if coarse in tried]
    return min((s.bound_seconds if s.is_dropped else s.seconds for s in shapes), default=0.0)


def _searched(mesh: ProcessMesh, searches: Sequence[Search], above: float) -> Shape:
    """Returns a shape with what search finds; the proof ends above so many seconds."""
    plans = [search.best_at(above=above) for search in searches]
    seconds = min(each.seconds for each in plans)
    bound = min(*(each.bound_seconds for each in plans), seconds)
    return Shape(mesh, seconds, bound)


def _gap(shape: Shape) -> float:
    """Returns the part of a shape's seconds that its bound leaves open."""
    return 1 - shape.bound_seconds / shape.seconds if shape.seconds else 0.0


def _best(searched: Searched) -> tuple[float, Plan]:
    plan = searched.best()
    return plan.seconds, plan


def remark(shapes: Sequence[Shape]) -> ReportEntry:
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
