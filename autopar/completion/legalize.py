"""Legalize: replaces ops by the bodies that were chosen for them, with complete layouts.

After this pass every `OpDist.body` is empty, so partition never meets an op that its rule doesn't
describe. Operands and results keep the layouts that completion gave them, unless the body can't
leave a result so; what lies between is completed from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from autopar.base.errors import AnnotationError
from autopar.completion.problem.body import body_function, expand_body
from autopar.completion.problem.op_strategies import Call, CallTable
from autopar.completion.problem.space import Space
from autopar.completion.propagate.bodies import calls_on, left_otherwise, solve_body
from autopar.cost import Cluster, CommunicationModel, ReshardPlanner
from autopar.ir.layout import Layout, Origin
from autopar.ir.mesh import ProcessMesh
from autopar.ir.program import Function, Op, OpDist, Program, Value
from autopar.ir.verify.distribution import PINNED

DEFAULT_CLUSTER = "cpu"


@dataclass(frozen=True)
class Legalize:
    """Expands the chosen bodies of a completed program.

    Attributes:
        cluster: The hardware whose costs decide within bodies; None for a built-in one.
        planner: Knows reshards of earlier passes; None if there are none.
    """

    name: ClassVar[str] = "legalize"

    cluster: Cluster | None = None
    planner: ReshardPlanner | None = field(default=None, repr=False, compare=False)

    def __call__(self, program: Program) -> Program:
        """Returns the program without bodies.

        Raises:
            AnnotationError: If the program has no mesh.
        """
        main = program.main
        if not any(op.dist is not None and op.dist.body for op in main.ops):
            return program
        if program.mesh is None:
            raise AnnotationError("the program has no mesh; complete it first")
        cluster = self.cluster or Cluster.load(DEFAULT_CLUSTER)
        planner = self.planner or ReshardPlanner(CommunicationModel(cluster, program.mesh))
        return program.with_main(_Expansion(main, cluster, planner).expand())


@dataclass(frozen=True)
class _Template:
    """Layouts of a body's ops and of the values between them, in the order of its expansion.

    Attributes:
        dists: Of the ops.
        layouts: Of the values between them.
        left: How the ops leave those results of the body that they leave otherwise than the choice
            says, by position. A choice doesn't know what the ops within a body can be split along.
    """

    dists: tuple[OpDist | None, ...]
    layouts: tuple[Layout | None, ...]
    left: Mapping[int, Layout]


class _Expansion:
    """Expands one function. Equal ops with equal choices share the work."""

    def __init__(self, function: Function, cluster: Cluster, planner: ReshardPlanner) -> None:
        self.function = function
        self.cluster = cluster
        self.planner = planner
        self.calls: dict[ProcessMesh, CallTable] = {}
        self.values = dict(function.values)
        self.templates: dict[tuple[Call, OpDist], _Template] = {}

    def expand(self) -> Function:
        """Returns the function with every body expanded."""
        ops: list[Op] = []
        for op in self.function.ops:
            dist = op.dist
            ops.extend(self._expanded(op, dist) if dist is not None and dist.body else [op])
        return replace(self.function, ops=tuple(ops), values=self.values)

    def _expanded(self, op: Op, dist: OpDist) -> Sequence[Op]:
        call = self._calls(dist.mesh).call_of(op, self.values)
        template = self._template(call, op, dist)
        ops, new = expand_body(call.rule, op, dist, self.values, self._fresh)
        origin = Origin("chosen", f"body {dist.body!r} of {op.kind} ({op.origin})")
        for value, layout in zip(new, template.layouts, strict=True):
            self.values[value.name] = replace(value, dist=layout, origin=origin)
        for position, layout in template.left.items():
            self._leave(op.results[position], layout)
        return [
            replace(inner, dist=layouts, origin=origin)
            for inner, layouts in zip(ops, template.dists, strict=True)
        ]

    def _calls(self, mesh: ProcessMesh) -> CallTable:
        """Returns the calls on a slice of the mesh."""
        if mesh not in self.calls:
            self.calls[mesh] = calls_on(Space(mesh, self.cluster, self.planner))
        return self.calls[mesh]

    def _leave(self, name: str, layout: Layout) -> None:
        """Stores a result as the body leaves it, unless the user wants it otherwise."""
        value = self.values[name]
        if value.dist is not None and value.dist.mesh != layout.mesh:
            return  # it is kept on another slice of the mesh
        if value.origin is None or value.origin.kind not in PINNED:
            stored = layout.without_partial() if name in self.function.outputs else layout
            self.values[name] = replace(value, dist=stored)

    def _template(self, call: Call, op: Op, dist: OpDist) -> _Template:
        key = (call, dist)
        if key not in self.templates:
            function = body_function(call.rule, op, dist, self.values)
            self.templates[key] = _solved(self._calls(dist.mesh), function)
        return self.templates[key]

    def _fresh(self, hint: str) -> str:
        name, count = hint, 0
        while name in self.values:
            count += 1
            name = f"{hint}_{count}"
        # Taken at once, so that a body may ask for the same hint twice.
        self.values[name] = _RESERVED
        return name


_RESERVED = Value("", "f32", ())


def _solved(calls: CallTable, function: Function) -> _Template:
    from autopar.completion.write import write_solution

    solution = solve_body(calls, function)
    done = write_solution(function, solution)
    between = _between(function)
    return _Template(
        tuple(op.dist for op in done.ops),
        tuple(done.values[name].dist for name in between),
        {position: made.layout for position, _, made in left_otherwise(function, solution)},
    )


def _between(function: Function) -> Sequence[str]:
    around = {*function.inputs, *function.outputs}
    values: Mapping[str, Value] = function.values
    return [name for name in values if name not in around]
