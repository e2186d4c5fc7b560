"""Where: the slice of the mesh on which each op runs and each value is kept.

A mark on a slice (`annotate.shard(x, mesh["pp", 0], ...)`) sends a tensor there, and what is
computed from it follows:

* Forward ops run on the smallest slice that holds all the slices of their operands: on the slice of
  a marked tensor, and on the whole mesh where tensors of different slices meet. With marks for one
  slice on an operand and on the result they run there. What depends on no mark runs where its
  readers run.
* Parameters, buffers and other inputs are kept on the smallest slice that holds all their readers;
  gradients, the optimizer's state and new contents lie where what they belong to lies.
* Backward ops and updates run where their results are wanted, as far as that is within the slice of
  their operands or beside it: gradients follow their forward values.
* What loops carry from iteration to iteration is found where an iteration leaves it.
* Where there is a pipeline, ops run where their stages do, but for updates.
* What follows from no mark is on the whole mesh, and so are the outputs of the program.

A place is the set of axes that are fixed at an index; the whole mesh is the empty one. So the
smallest slice that holds two others is what the sets have in common. A mask may send a tensor to a
box, where an axis is fixed at several indices; such an axis is open in what holds a box and a slice
that differ along it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from autopar.ir.fixed import Index
from autopar.ir.layout import Layout
from autopar.ir.ops.loops import LAST
from autopar.ir.program import STORED_ROLES, Function, Op, Program

Place = frozenset[tuple[str, Index]]
"""The fixed axes of a part of the mesh, with where along them it is."""

WHOLE: Place = frozenset()

NO_STAGES: Mapping[int, Place] = MappingProxyType({})


@dataclass(frozen=True)
class Places:
    """Where everything of a function is.

    Attributes:
        ops: Where each op runs, by its results.
        values: Where each value is kept; one that is pinned elsewhere than it is computed, there.
    """

    ops: Mapping[tuple[str, ...], Place]
    values: Mapping[str, Place]

    @property
    def are_slices(self) -> bool:
        """Whether anything is elsewhere than on the whole mesh."""
        return any(self.ops.values()) or any(self.values.values())


def place_of(layout: Layout) -> Place:
    """Returns the place of the mesh that a layout is on."""
    return frozenset(layout.mesh.fixed)


def stage_places(program: Program, axis: str, index_of: Callable[[int], Index]) -> dict[int, Place]:
    """Returns the slice of the mesh on which each stage runs.

    Args:
        program: A serial program.
        axis: The mesh axis along which stages lie.
        index_of: Returns the index, or run of indices, along it at which a stage runs.
    """
    count = 1 + max(op.stage for op in program.main.ops)
    places = ((stage, index_of(stage)) for stage in range(count))
    size = 0 if program.mesh is None else program.mesh.axis_size(axis)
    return {
        stage: WHOLE if index == range(size) else frozenset(((axis, index),))
        for stage, index in places
    }


def find_places(function: Function, stages: Mapping[int, Place] = NO_STAGES) -> Places:
    """Returns where the ops of a serial function run, as its pins and stages have it.

    Args:
        function: The function.
        stages: Where each stage of a pipeline runs; nothing if there is no pipeline.
    """
    pinned = {name: place_of(v.dist) for name, v in function.values.items() if v.dist is not None}
    if not stages and not any(pinned.values()):
        everywhere = dict.fromkeys((op.results for op in function.ops), WHOLE)
        return Places(everywhere, dict.fromkeys(function.values, WHOLE))
    return _Finder(function, pinned, stages).find()


@dataclass
class _Finder:
    """Finds places, first of forward ops, then of inputs, then of the others from the end on."""

    function: Function
    pinned: Mapping[str, Place]
    stages: Mapping[int, Place]
    ops: dict[tuple[str, ...], Place] = field(default_factory=dict)
    values: dict[str, Place] = field(default_factory=dict)
    """Where values are kept, of those for which it is known so far."""

    def find(self) -> Places:
        function = self.function
        self.uses = function.consumers()
        self.ends = _ends(function)
        self.values.update((name, self.pinned[name]) for name in self._pinned_inputs())
        forward = [op for op in function.ops if op.phase == "forward"]
        backward = [op for op in function.ops if op.phase != "forward"]
        for op in forward:
            place = self._staged(op) or self._other_end(op)
            self._put(op, place or self._sent(op) or self._of_operands(op))
        for op in reversed(forward):
            self._put(op, self._other_end(op) or self._of_readers(op, ("forward",)))
        self._put_inputs(("forward",))
        self._put_belongings()
        near = self._near(backward)
        for op in backward:
            self._put(op, self._staged(op))
        for op in reversed(backward):
            self._put(op, _wanted(near[op.results], self._of_readers(op)))
        for op in reversed(forward):
            self._put(op, self._other_end(op) or self._of_readers(op))
        for op in function.ops:
            self._put(op, WHOLE)
        self._put_inputs()
        self._put_ends()
        return Places(self.ops, self.values)

    def _pinned_inputs(self) -> Iterable[str]:
        """Yields the inputs of which a pin says where they are.

        The pin of what the program stores says how it is split, wherever that is, unless it is on
        a slice or split along an axis of which a slice has one index.
        """
        for name in self.function.inputs:
            if self.pinned.get(name) or (name in self.pinned and not self._is_stored(name)):
                yield name

    def _is_stored(self, name: str) -> bool:
        return self.function.values[name].role in STORED_ROLES

    def _fits(self, name: str, place: Place) -> bool:
        """Whether the layout that is pinned of an input is one on a place, too."""
        layout = self.function.values[name].dist
        at_one = {axis for axis, index in place if not isinstance(index, range)}
        return layout is None or at_one.isdisjoint(layout.sharded_axes)

    def _put(self, op: Op, place: Place | None) -> None:
        """Notes where an op runs, if that is known now and wasn't before; a mark says it itself."""
        if op.results in self.ops:
            return
        sent = self.pinned.get(op.results[0]) if len(op.results) == 1 else None
        place = sent if sent else place
        if place is None and all(name in self.pinned for name in op.results):
            place = _joined(self.pinned[name] for name in op.results)
        if place is None:
            return
        self.ops[op.results] = place
        for name in op.results:
            self.values[name] = self.pinned.get(name, self.values.get(name, place))

    def _staged(self, op: Op) -> Place | None:
        """Returns where the stage of an op runs; None if it is in none."""
        return None if op.phase == "update" else self.stages.get(op.stage)

    def _other_end(self, op: Op) -> Place | None:
        """Returns where the other end of what is carried is: it is left where it is found."""
        return self.ops.get(self.ends.get(op.results, ()))

    def _sent(self, op: Op) -> Place | None:
        """Returns the slice to which marks send all results of an op, if an operand is there too.

        So an op with marks on an operand and on its result runs there, wherever the rest is.
        """
        readers = [reader for name in op.results for reader in self.uses[name]]
        marks = {self.pinned.get(reader.results[0]) for reader in readers}
        place = marks.pop() if len(marks) == 1 else None
        is_near = any(self.values.get(name) == place for name in op.operands)
        return place if place and is_near else None

    def _of_operands(self, op: Op) -> Place | None:
        return _joined(self.values[name] for name in op.operands if name in self.values)

    def _of_readers(self, op: Op, phases: tuple[str, ...] = ()) -> Place | None:
        """Returns the smallest place with all readers of an op's results that are known."""
        readers = [each for name in op.results for each in self._readers(name, phases)]
        kept = [self.values[name] for name in op.results if name in self.values]
        return _joined([*kept, *readers])

    def _readers(self, name: str, phases: tuple[str, ...] = ()) -> Iterable[Place]:
        for op in self.uses[name]:
            if op.results in self.ops and (not phases or op.phase in phases):
                yield self.ops[op.results]

    def _put_inputs(self, phases: tuple[str, ...] = ()) -> None:
        """Keeps inputs where they are read, those that nobody reads on the whole mesh."""
        for name in self.function.inputs:
            if name in self.values:
                continue
            place = _joined(self._readers(name, phases))
            if place is not None or not phases:
                self.values[name] = place if place and self._fits(name, place) else WHOLE

    def _put_belongings(self) -> None:
        """Keeps new contents and gradients where what they belong to is kept."""
        for output, source in self.function.aliases:
            if source in self.values:
                self.values.setdefault(output, self.values[source])
        for name in self.function.values:
            kind, slash, parameter = name.partition("/")
            if kind == "grad" and slash and parameter in self.function.inputs:
                self.values.setdefault(name, self.values.get(parameter, WHOLE))

    def _near(self, ops: Iterable[Op]) -> dict[tuple[str, ...], Place | None]:
        """Returns where the operands of ops would lead them, one after another."""
        places_of: dict[tuple[str, ...], Place | None] = {}
        led: dict[str, Place | None] = {}
        for op in ops:
            places = [self.values.get(name, led.get(name)) for name in op.operands]
            place = _joined(each for each in places if each is not None)
            places_of[op.results] = place
            for name in op.results:
                led[name] = self.pinned.get(name, place)
        return places_of

    def _put_ends(self) -> None:
        """Keeps new contents where the old ones are, and outputs that users see everywhere."""
        renewed = dict(self.function.aliases)
        for name in self.function.outputs:
            self.values[name] = self.values[renewed[name]] if name in renewed else WHOLE


def _ends(function: Function) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Returns, of each end of what loops carry from iteration to iteration, the other one."""
    ends = {op.results: (op.operands[1],) for op in function.ops if op.kind == LAST}
    return ends | {carried: left for left, carried in ends.items()}


def _joined(places: Iterable[Place]) -> Place | None:
    """Returns the smallest place that holds others; None without any."""
    every = list(places)
    return frozenset.intersection(*every) if every else None


def _wanted(near: Place | None, wanted: Place | None) -> Place | None:
    """Returns where a backward op or an update runs.

    Args:
        near: The smallest place with all its operands.
        wanted: The smallest place with all its readers.
    """
    if wanted is None or (near is not None and near > wanted):
        # To gather what is smaller afterwards beats to gather the operands.
        return near
    return wanted
