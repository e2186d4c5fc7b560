"""What it costs to cut a model into stages: seconds of stages, and of what is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

from autopar.cost import Cluster, CommunicationModel, evaluate
from autopar.ir.expr.expression import planned, prod
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops.loops import microbatches as microbatches_of
from autopar.ir.program import Function, Op, Program
from autopar.ir.stages import Stages
from autopar.partition.pipeline.runs import Widths
from autopar.partition.pipeline.schedules import Schedule
from autopar.partition.pipeline.tasks import BACKWARD, FORWARD, WEIGHT, Task
from autopar.partition.pipeline.timetable import Timetable


@dataclass(frozen=True, slots=True)
class Way:
    """A way to put the first ops into stages.

    Attributes:
        slowest: Seconds of the slowest stage and of what it sends and gets, per microbatch.
        once: Seconds of all stages and of all that is sent, there and back, per microbatch.
        cuts: The ends of the stages, each the number of ops in front of it.
        widths: At how many indices of the axis each is.
    """

    slowest: float
    once: float
    cuts: tuple[int, ...]
    widths: Widths = ()

    def then(self, seconds: float, got: float, sent: float, cut: int, width: int = 1) -> Way:
        """Returns the way with one stage more.

        Args:
            seconds: What that takes.
            got, sent: What it takes to send what is read behind the cuts in front of it and behind,
                and its gradient back.
            cut: How many ops there are up to its end.
            width: At how many indices of the axis it is.
        """
        slowest = max(self.slowest, seconds + got + sent)
        once = self.once + seconds + sent
        return Way(slowest, once, (*self.cuts, cut), (*self.widths, width))


@dataclass(frozen=True)
class Costs:
    """What the forward ops of a microbatch take, and what is sent if they are cut apart.

    Attributes:
        seconds: Of the ops in front of each place, by the kind of task; updates are as gradients.
        sent: Per place, the seconds to send what is read behind it.
        microbatches: Their number.
        trains: Whether there is a backward pass.
        stored: Bytes of the parameters that are read first in front of each place; none: of none.
        reduced: Returns the seconds to sum up gradients of so many bytes over so many processes.
    """

    seconds: Mapping[str, Sequence[float]]
    sent: Sequence[float]
    microbatches: int
    trains: bool = True
    stored: Sequence[float] = ()
    reduced: Callable[[float, int], float] = lambda nbytes, width: 0.0

    @property
    def travels(self) -> int:
        """How often something is sent over a cut: there, and in training back."""
        return 2 if self.trains else 1

    @cached_property
    def before(self) -> Sequence[float]:
        """Seconds of all ops in front of each place."""
        return [*map(sum, zip(*self.seconds.values(), strict=True))]

    def stage_seconds(self, begin: int, end: int, width: int) -> float:
        """Returns about what a stage takes per microbatch.

        Args:
            begin, end: How many ops there are in front of it, and up to its end.
            width: At how many indices of the axis it is. It computes as if its batch were split
                along these, and sums up its gradients once a step.
        """
        seconds = (self.before[end] - self.before[begin]) / width
        if width > 1 and self.trains and self.stored:
            nbytes = self.stored[end] - self.stored[begin]
            seconds += self.reduced(nbytes, width) / self.microbatches
        return seconds

    def step_seconds(self, way: Way) -> float:
        """Returns about what a step takes."""
        return way.once + (self.microbatches - 1) * way.slowest

    def longest_stage(self, way: Way, widest: int = 1) -> float:
        """Returns how long a stage may be at most where a step takes no longer than this way.

        Args:
            way: The way.
            widest: At how many indices of the axis a stage is at most.
        """
        if self.microbatches == 1:
            return self.before[-1]
        least = self.before[-1] / widest
        return (self.step_seconds(way) - least) / (self.microbatches - 1)

    def scheduled_seconds(self, way: Way, schedule: Schedule, widths: Widths = ()) -> float:
        """Returns what a step takes by a schedule.

        Args:
            way: Where it is cut.
            schedule: The schedule.
            widths: At how many indices of the axis the processes of stages are; none: at one each.
        """
        ends = [*pairwise((0, *way.cuts))]
        processes = len(widths) or len(ends) // schedule.turns
        pipeline = schedule.pipeline(processes, len(ends), self.microbatches)

        def seconds(task: Task) -> float:
            begin, end = ends[task.stage]
            width = widths[pipeline.process_of(task.stage)] if widths else 1
            mine = (self.seconds[task.phase][end] - self.seconds[task.phase][begin]) / width
            if task.phase != WEIGHT:
                return mine
            alone = (self.before[end] - self.before[begin]) / width
            return mine + self.stage_seconds(begin, end, width) - alone

        def delay(task: Task) -> float:
            cut = way.cuts[task.stage if task.phase == FORWARD else task.stage - 1]
            return self.sent[cut]

        orders = schedule.orders(pipeline, trains=self.trains)
        return Timetable.of(pipeline, orders, seconds, delay).seconds


def first_of(main: Function) -> list[Op]:
    """Returns the forward ops of the first microbatch of a step."""
    return [op for op in main.ops if op.phase == "forward" and not op.microbatch]


def costs_of(program: Program, axis: str, cluster: Cluster, forward: Sequence[Op]) -> Costs:
    """Returns what the forward ops of a microbatch cost.

    Args:
        program, axis, cluster: See `cut_into_stages`.
        forward: The ops.
    """
    main, mesh = program.main, program.mesh
    assert mesh is not None
    share = mesh.axis_size(axis) / mesh.size
    microbatches = max(max(microbatches_of(op), 1 + op.microbatch) for op in main.ops)
    seconds = {task: [0.0] * (len(forward) + 1) for task in (FORWARD, BACKWARD, WEIGHT)}
    places = _Places(main, forward)
    for op, cost in zip(main.ops, evaluate(program, cluster).costs, strict=True):
        for place, part in places.of_op(op):
            often = microbatches if op.phase == "update" else 1
            seconds[places.task_of(op)][place + 1] += cost.compute_seconds * part * share / often
    model = CommunicationModel(cluster, mesh)
    sent = [
        model.point_to_point(nbytes * share, (axis,)) if nbytes else 0.0
        for nbytes in _sent_bytes(main, forward, places.prepared)
    ]
    before = {task: [*accumulate(each)] for task, each in seconds.items()}
    trains = any(op.phase == BACKWARD for op in main.ops)
    stored = _stored_bytes(main, places, len(forward))
    parts = sums_along(cluster, mesh, axis)
    return Costs(before, sent, microbatches, trains, stored, parts)


def sums_along(cluster: Cluster, mesh: ProcessMesh, axis: str) -> Callable[[float, int], float]:
    """Returns what says how long a sum over some indices of an axis takes.

    Args:
        cluster: The hardware.
        mesh: The whole mesh.
        axis: The axis.
    """
    whole = CommunicationModel(cluster, mesh)

    @lru_cache(maxsize=1024)
    def seconds(nbytes: float, width: int) -> float:
        return whole.on(mesh.run(axis, range(width))).all_reduce(nbytes, (axis,))

    return seconds


def _stored_bytes(main: Function, places: _Places, count: int) -> Sequence[float]:
    """Returns, per place, the bytes of the parameters that are read first in front of it."""
    nbytes = [0.0] * (count + 1)
    for name, place in places.first_reads():
        value = main.values[name]
        nbytes[place + 1] += planned(prod(value.shape)) * value.itemsize
    return [*accumulate(nbytes)]


class _Places:
    """The positions of the forward ops with which all ops of a step go.

    Args:
        main: The step.
        forward: The forward ops of its first microbatch.
    """

    def __init__(self, main: Function, forward: Sequence[Op]) -> None:
        self._values = main.values
        numbered = (replace(op, stage=at) for at, op in enumerate(forward))
        backward = [op for op in main.ops if op.phase == "backward" and not op.microbatch]
        self._stages = Stages(replace(main, ops=(*numbered, *backward)))
        self._read = {name: min(at) for name, at in self._stages.reading.items() if at}

    @property
    def prepared(self) -> AbstractSet[str]:
        """What is made where it is read."""
        return self._stages.prepared

    def first_reads(self) -> Iterator[tuple[str, int]]:
        """Yields the parameters, each with the position of what reads it first."""
        for name, place in self._read.items():
            if self._values[name].role == "parameter":
                yield name, place

    def task_of(self, op: Op) -> str:
        """Returns the kind of task of which an op is a part."""
        if op.phase == FORWARD:
            return FORWARD
        return WEIGHT if op.phase == "update" or op.results in self._stages.gradients else BACKWARD

    def of_op(self, op: Op) -> list[tuple[int, float]]:
        """Returns positions, each with the part of an op that goes there; none if it's elsewhere.

        An update goes with the first readers of its parameters.
        """
        if op.phase != "update":
            place = self._stages.found.get(op.results)
            return [] if place is None else [(place, 1.0)]
        sizes = {
            name: planned(prod(self._values[name].shape))
            for name in op.operands
            if name in self._read
        }
        whole = sum(sizes.values())
        return [(self._read[name], size / whole) for name, size in sizes.items() if size]


def _sent_bytes(main: Function, forward: Sequence[Op], prepared: AbstractSet[str]) -> list[int]:
    """Returns, per place, the bytes of what is made in front of it and read behind.

    Args:
        main: The step.
        forward: The forward ops of its first microbatch.
        prepared: What is made where it is read.
    """
    made = {name: at for at, op in enumerate(forward) for name in op.results}
    sent = made.keys() - prepared
    last = {name: at for at, op in enumerate(forward) for name in op.operands if name in sent}
    change = [0] * (len(forward) + 1)
    for name, at in last.items():
        value = main.values[name]
        nbytes = planned(prod(value.shape)) * value.itemsize
        change[made[name] + 1] += nbytes
        change[at + 1] -= nbytes
    return [*accumulate(change)]
