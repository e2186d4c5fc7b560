"""Problem: what is to be decided, as one value.

A program for one device on a mesh, in which what is pinned has its layout or its choice, and the
cluster whose costs decide. What is learned of costs is kept here and nowhere else, so problems that
differ in their pins share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from autopar.base.errors import AnnotationError
from autopar.completion.prepare.common_subexpressions import share_moves
from autopar.completion.prepare.hold_weights import hold_weights
from autopar.completion.prepare.renew_views import renew_views
from autopar.completion.prepare.split_fused_weights import split_variants
from autopar.completion.presets.place import place_pins
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.op_strategies import CallTable
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on
from autopar.completion.submesh.slices import without_brought
from autopar.completion.submesh.where import NO_STAGES, Place, Places, find_places
from autopar.cost import Cluster, ReshardPlanner
from autopar.ir.layout import Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Op, Program, Value

Pinned = Value | Op
"""A value with a layout, or an op with a choice, as a user pins it."""

Item = TypeVar("Item", Value, Op)


@dataclass(frozen=True, eq=False)
class Way:
    """A program as its ops are to be completed: as it is, or with fused weights taken apart.

    Attributes:
        program: With views renewed, moves shared and weights held.
        calls: What is known of its ops.
    """

    program: Program
    calls: CallTable = field(repr=False)

    @cached_property
    def graph(self) -> Graph:
        """Its ops, with the user's pins; `Graph.anew` gives one to be pinned further."""
        return graph_of(self.program.main, self.calls)


@dataclass(frozen=True, eq=False)
class Problem:
    """A program on a mesh, with its pins, and what is known of costs.

    Attributes:
        program: The serial program. Only what is pinned has a layout or a choice.
        cluster: The hardware whose costs decide.
        calls: What is known of ops and reshards on the mesh; shared by problems with other pins.
        stages: The slice of the mesh on which each stage of a pipeline runs.
    """

    program: Program
    cluster: Cluster
    calls: CallTable = field(repr=False)
    stages: Mapping[int, Place] = field(default_factory=dict)

    @classmethod
    def from_program(
        cls,
        program: Program,
        cluster: Cluster,
        planner: ReshardPlanner | None = None,
        stages: Mapping[int, Place] = NO_STAGES,
    ) -> Problem:
        """Returns the problem of completing a program.

        Args:
            program: With its mesh and pins.
            cluster: The hardware.
            planner: Knows reshards on the mesh already; None if there is none that does.
            stages: The slice of the mesh on which each stage of a pipeline runs, if there is one.

        Raises:
            AnnotationError: If the program has no mesh.
        """
        if program.mesh is None:
            raise AnnotationError("the program has no mesh; annotate it with one first")
        return cls(program, cluster, calls_on(Space(program.mesh, cluster, planner)), stages)

    @classmethod
    def behind(cls, completed: Program, cluster: Cluster) -> Problem:
        """Returns the problem that a completed program solves: with the user's pins only.

        Args:
            completed: The program, in which origins tell what the user pinned.
            cluster: The hardware.
        """
        # What it brought to slices it brings there again.
        main = without_brought(completed.main)
        values = {name: _free(value) for name, value in main.values.items()}
        ops = tuple(_free(op) for op in main.ops)
        free = completed.with_main(replace(main, values=values, ops=ops))
        return cls.from_program(free, cluster, stages=_stages_behind(main))

    def with_pins(self, pins: Iterable[Pinned]) -> Problem:
        """Returns the problem with other pins, which shares what is known of costs.

        Args:
            pins: Each is put in the place of the value of its name, or of the op of its results;
                without a layout or choice, what was pinned becomes free.
        """
        main = self.program.main
        values, ops = dict(main.values), {op.results: op for op in main.ops}
        for pin in pins:
            if isinstance(pin, Value):
                values[pin.name] = pin
            else:
                ops[pin.results] = pin
        pinned = replace(main, values=values, ops=tuple(ops.values()))
        return replace(self, program=self.program.with_main(pinned))

    @property
    def mesh(self) -> ProcessMesh:
        """The processes."""
        return self.calls.space.mesh

    @property
    def planner(self) -> ReshardPlanner:
        """Plans reshards on the mesh."""
        return self.calls.space.planner

    @cached_property
    def places(self) -> Places:
        """Where on the mesh its ops run, and its values are kept."""
        return find_places(self.program.main, self.stages)

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """The ways to complete it: first as it is, then with its fused weights taken apart."""
        variants = split_variants(self.program) if self.calls.space.axes else ()
        return tuple(Way(_prepared(each), self.calls) for each in (self.program, *variants))


def graph_of(main: Function, calls: CallTable) -> Graph:
    """Returns the ops of a function on one mesh, with the user's pins in their places."""
    graph = Graph(calls.space, calls, main.ops, main.values, main.outputs, main.aliases)
    place_pins(graph)
    return graph


def prepared(main: Function) -> Function:
    """Returns a function as its ops are to be completed: see `autopar.completion.prepare`."""
    return hold_weights(share_moves(renew_views(main)))


def _prepared(program: Program) -> Program:
    return program.with_main(prepared(program.main))


def _free(item: Item) -> Item:
    return item if _is_by_user(item.origin) else replace(item, dist=None, origin=None)


def _stages_behind(completed: Function) -> Mapping[int, Place]:
    """Returns where the stages of a completed function run; nothing if it is no pipeline."""
    forward = [op for op in completed.ops if op.phase == "forward" and op.dist is not None]
    found = {op.stage: frozenset(op.dist.mesh.fixed) for op in forward if op.dist is not None}
    return found if any(found) else NO_STAGES


def _is_by_user(origin: Origin | None) -> bool:
    return origin is not None and origin.kind in ("annotated", "inherited")
