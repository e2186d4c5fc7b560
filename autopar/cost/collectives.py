"""CommunicationModel: the seconds of a collective over mesh axes, in closed form.

A group that spans several levels of links works level by level, as NCCL and MPI do: what each level
moves, and over how many members, is derived from the sizes and strides of the group's axes. On each
level the cheapest algorithm is taken (`algorithms`). Ranks are never enumerated: 4,096 of them cost
as much as 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from autopar.base.errors import AnnotationError
from autopar.cost.algorithms import KINDS, POINT_TO_POINT
from autopar.cost.cluster import Cluster
from autopar.cost.links import LinkLevel
from autopar.ir.mesh import ProcessMesh


@dataclass(frozen=True, slots=True)
class Border:
    """What lies around groups of devices: the links of one level and of those outside it.

    Attributes:
        alpha: The least latency of these links.
        beta: Their least time per byte.
        inner: Per mesh axis, how many neighbours along it are in the same group.
    """

    alpha: float
    beta: float
    inner: Mapping[str, int]

    def members(self, axes: Iterable[str]) -> int:
        """Returns how many members of a group differ in these axes only."""
        return math.prod(self.inner[axis] for axis in axes)


@dataclass(frozen=True, slots=True)
class Way:
    """How a collective is carried out on one level of links.

    Attributes:
        level: The name of the links.
        algorithm: A name of the table above.
        seconds: Predicted time.
    """

    level: str
    algorithm: str
    seconds: float


class CommunicationModel:
    """Seconds of collectives over the axes of a mesh that lies on a cluster.

    Process i is carried out by device i, unless `order` says that the axes are nested otherwise.
    A group's axes are treated as strided ranges of devices; where a mesh isn't a regular grid of
    ids, the strides are those of its first corner.

    Args:
        cluster: Gives the levels of links.
        mesh: Its axes, and those of the mesh it is part of, may be named in the methods.
        order: The axes from the outermost (farthest apart) to the innermost (neighbours), if it
            isn't the mesh's own order.

    Raises:
        AnnotationError: If the cluster has fewer devices than the mesh has processes, or `order`
            isn't a permutation of the axes.
    """

    def __init__(
        self, cluster: Cluster, mesh: ProcessMesh, order: Sequence[str] | None = None
    ) -> None:
        self.cluster = cluster
        self.mesh = mesh
        self.order = order
        root = mesh
        while root.parent is not None:
            root = root.parent
        if root.size > cluster.devices:
            raise AnnotationError(
                f"{root} has {root.size} processes, but cluster {cluster.name!r} has"
                f" {cluster.devices} devices; use a smaller mesh or describe a larger cluster"
            )
        self._sizes = {**root.axis_sizes(), **mesh.axis_sizes()}
        self._strides = _strides(root, order)
        self._extent = max(root.ids) + 1 if order is None else root.size
        self._along = {axis: (*self._axis_span(axis),) for axis in self._sizes}
        self._spans: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._used: dict[tuple[str, ...], tuple[tuple[LinkLevel, int], ...]] = {}
        self._known: dict[tuple[str, float, tuple[str, ...]], float] = {}
        self._parts: dict[tuple[tuple[str, range], ...], CommunicationModel] = {}

    def on(self, mesh: ProcessMesh) -> CommunicationModel:
        """Returns the model of a part of the mesh, on which axes may have fewer processes."""
        if mesh.runs == self.mesh.runs:
            return self
        key = (*mesh.runs.items(),)
        if key not in self._parts:
            part = mesh.root.at(key)
            self._parts[key] = CommunicationModel(self.cluster, part, self.order)
        return self._parts[key]

    def grouped(self, mesh: ProcessMesh, groups: Mapping[str, Sequence[str]]) -> CommunicationModel:
        """Returns the model of a mesh whose axes stand for groups of this one's."""
        model = copy(self)
        model.mesh = mesh
        model._sizes = {axis: self.members(group) for axis, group in groups.items()}
        model._along = {axis: self.span(group) for axis, group in groups.items()}
        model._spans, model._used, model._known, model._parts = {}, {}, {}, {}
        return model

    def members(self, axes: Sequence[str]) -> int:
        """Returns how many processes a group over these axes has."""
        return math.prod(self._sizes[axis] for axis in axes)

    def span(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Returns how many members a group over these axes has per level of links.

        The product is the group's size. `(8, 4)`: in each of 4 hosts, 8 members. Where a level
        holds different numbers of members in different places, the worst case is taken: more of
        them on the outer level.
        """
        key = tuple(sorted(axes))
        if key not in self._spans:
            counts = [1] * len(self.cluster.links)
            for axis in key:
                for level, count in enumerate(self._along[axis]):
                    counts[level] *= count
            self._spans[key] = tuple(counts)
        return self._spans[key]

    def _axis_span(self, axis: str) -> Iterable[int]:
        rest = self._sizes[axis]
        reach = self._strides[axis]
        capacity = 1
        for level in self.cluster.links[:-1]:
            capacity *= level.size
            if self._extent <= capacity:
                break
            inner = math.gcd(rest, capacity // reach) if capacity % reach == 0 else 1
            yield inner
            rest //= inner
            reach *= inner
        yield rest

    def all_gather(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of an all_gather; outer levels first, on the smaller pieces.

        Args:
            nbytes: Bytes of the full result on a device.
            axes: The mesh axes of the group.
        """
        return self._seconds("all_gather", nbytes, axes)

    def reduce_scatter(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of a reduce_scatter: an all_gather backwards.

        Args:
            nbytes: Bytes of the full input on a device.
            axes: The mesh axes of the group.
        """
        return self._seconds("reduce_scatter", nbytes, axes)

    def all_reduce(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of an all_reduce.

        Inner levels reduce-scatter, so that outer ones move smaller pieces, and gather at the end.

        Args:
            nbytes: Bytes of the tensor on a device.
            axes: The mesh axes of the group.
        """
        return self._seconds("all_reduce", nbytes, axes)

    def all_to_all(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of an all_to_all; all bytes take part in every level.

        Args:
            nbytes: Bytes of the input on a device, which are those of the result.
            axes: The mesh axes of the group.
        """
        return self._seconds("all_to_all", nbytes, axes)

    def broadcast(self, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of a broadcast.

        Args:
            nbytes: Bytes of the tensor.
            axes: The mesh axes of the group.
        """
        return self._seconds("broadcast", nbytes, axes)

    def collective_seconds(self, price: str, nbytes: float, axes: Sequence[str]) -> float:
        """Returns the seconds of a collective by the name of its price.

        Args:
            price: A name of `algorithms.KINDS`, or `POINT_TO_POINT`.
            nbytes: As for the method of this name.
            axes: The mesh axes of the group.
        """
        if price == POINT_TO_POINT:
            return self.point_to_point(nbytes, axes)
        return self._seconds(price, nbytes, axes)

    def algorithms(self, kind: str, nbytes: float, axes: Sequence[str]) -> tuple[Way, ...]:
        """Returns the algorithm that is cheapest on each level of links that a group spans.

        Args:
            kind: A name of `algorithms.KINDS`; of others there is nothing to choose.
            nbytes: As for the method of this name.
            axes: The mesh axes of the group.
        """
        if kind not in KINDS:
            return ()
        ways, shrinks = KINDS[kind]
        cheapest_ways = []
        for link, count in self._levels(axes):
            cheapest = min(ways(link.for_collective(kind), count, nbytes), key=lambda way: way[0])
            cheapest_ways.append(Way(link.name, cheapest[1], cheapest[0]))
            nbytes = nbytes / count if shrinks else nbytes
        return tuple(cheapest_ways)

    def _seconds(self, kind: str, nbytes: float, axes: Sequence[str]) -> float:
        key = (kind, nbytes, tuple(axes))
        seconds = self._known.get(key)
        if seconds is None:
            ways, shrinks = KINDS[kind]
            seconds, size = 0.0, nbytes
            for link, count in self._levels(axes):
                seconds += min(ways(link.for_collective(kind), count, size))[0]
                size = size / count if shrinks else size
            self._known[key] = seconds
        return seconds

    def point_to_point(self, nbytes: float, axes: Sequence[str], messages: int = 1) -> float:
        """Returns the seconds of messages from every member of a group: m alpha + N beta.

        Args:
            nbytes: Bytes of all messages that a member sends or receives.
            axes: The mesh axes along which senders and receivers differ; the slowest level that
                they span counts.
            messages: How many messages these are.
        """
        return max(
            (
                messages * link.alpha_seconds + nbytes * link.beta_seconds_per_byte
                for link in (link.for_collective(POINT_TO_POINT) for link, _ in self._levels(axes))
            ),
            default=0.0,
        )

    def local_copy(self, nbytes: float) -> float:
        """Returns the seconds to read and write this many bytes of a device's own memory."""
        return 2 * nbytes / self.cluster.bytes_per_second

    def borders(self, axes: Sequence[str]) -> list[Border]:
        """Returns the borders that messages over these axes cross, innermost first.

        The first is that around every single device.
        """
        links = tuple(link.least() for link in self.cluster.links)
        spans = {axis: self.span((axis,)) for axis in axes}
        crossed = [level for level, count in enumerate(self.span(axes)) if count > 1]
        return [
            Border(
                min(links[level].alpha_seconds for level in crossed[index:]),
                min(links[level].beta_seconds_per_byte for level in crossed[index:]),
                {axis: math.prod(span[:inside]) for axis, span in spans.items()},
            )
            for index, inside in enumerate(crossed)
        ]

    def _levels(self, axes: Sequence[str]) -> tuple[tuple[LinkLevel, int], ...]:
        """The levels that a group spans, with its members on each."""
        key = tuple(axes)
        if key not in self._used:
            self._used[key] = tuple(
                (link, count)
                for link, count in zip(self.cluster.links, self.span(axes), strict=True)
                if count > 1
            )
        return self._used[key]


def _strides(mesh: ProcessMesh, order: Sequence[str] | None) -> dict[str, int]:
    """Returns how many devices apart the neighbours along each axis are."""
    if order is not None:
        if sorted(order) != sorted(mesh.dim_names):
            raise AnnotationError(
                f"axis order {list(order)} is not a permutation of {list(mesh.dim_names)}"
            )
        strides: dict[str, int] = {}
        stride = 1
        for axis in reversed(order):
            strides[axis] = stride
            stride *= mesh.axis_size(axis)
        return strides
    strides = {}
    step = 1
    for axis, size in zip(reversed(mesh.dim_names), reversed(mesh.shape), strict=True):
        strides[axis] = abs(mesh.ids[step] - mesh.ids[0]) if size > 1 else 1
        step *= size
    return strides
