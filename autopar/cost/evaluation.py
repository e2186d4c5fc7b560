"""Evaluate: the flops, bytes and seconds of each op of a rank's program, and of all of it.

There are two figures of time, which are never mixed. *Serialized* seconds are the sum over ops,
collectives, transfers to the host and what the host computes: what a search minimizes and bounds.
*Overlapped* seconds are the end of a schedule in which sums, transfers and the host run beside the
ops that don't wait for them, as the runtime starts them (`autopar/cost/clocks.py`): what reports
predict. Where ranks run different programs, as the stages of a pipeline, that schedule is one of
all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.cost.algorithms import POINT_TO_POINT
from autopar.cost.clocks import Clock, Run, clocks
from autopar.cost.cluster import Cluster
from autopar.cost.collectives import CommunicationModel
from autopar.cost.communicated import collective_seconds, communicated_bytes
from autopar.cost.flops import product_flops
from autopar.cost.op_cost import NOTHING, OpCost
from autopar.cost.roofline import local_bytes, op_seconds
from autopar.ir.collectives import (
    COMM,
    axes_of_group,
    declared,
    is_collective,
    link_of,
    receivers_of,
    runs_of_group,
)
from autopar.ir.expr.at_rank import op_args_at, value_at
from autopar.ir.expr.expression import AsPlanned
from autopar.ir.memory.transfers import ENDED, STARTED, is_on_host
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import functional_kind, is_known, rule_of
from autopar.ir.ops.shape.view import FREE
from autopar.ir.program import (
    CALLS,
    Arg,
    Function,
    Op,
    OpDist,
    Program,
    Ref,
    Value,
    callee_of,
    trip_of,
)
from autopar.ir.rules.rule import TensorType


@dataclass(frozen=True)
class Evaluation:
    """What a rank's program costs. Ops by their position in `main`.

    Attributes:
        ops: The ops.
        costs: What each costs.
        clock: When each begins and is done, in the overlapped schedule.
        inside: What a run of the function costs that an op calls, by its name.
    """

    ops: tuple[Op, ...]
    costs: tuple[OpCost, ...]
    clock: Clock
    inside: Mapping[str, Evaluation] = field(default_factory=dict)

    @cached_property
    def serialized_seconds(self) -> float:
        """Seconds of all ops one after the other: a sum."""
        return sum(each.seconds for each in self.costs)

    @cached_property
    def overlapped_seconds(self) -> float:
        """Seconds of the schedule with computation and communication side by side."""
        return self.clock.seconds

    @cached_property
    def compute_seconds(self) -> float:
        """Seconds of computation alone."""
        return sum(each.compute_seconds for each in self.costs)

    @cached_property
    def communication_seconds(self) -> float:
        """Seconds of communication alone."""
        return sum(each.communication_seconds for each in self.costs)

    @cached_property
    def transfer_seconds(self) -> float:
        """Seconds of transfers to the host's memory and back alone."""
        return sum(each.transfer_seconds for each in self.costs)

    @cached_property
    def host_seconds(self) -> float:
        """Seconds of what the host computes alone."""
        return sum(each.host_seconds for each in self.costs)

    @cached_property
    def flops(self) -> int:
        """Flops of products."""
        return sum(each.flops for each in self.costs)

    @cached_property
    def unknown(self) -> Mapping[str, int]:
        """How often there is each kind of op without a rule, of which only the bytes are known."""
        ops = (*self.ops, *(op for each in self.inside.values() for op in each.ops))
        kinds = Counter(op.kind for op in ops if op.kind not in FREE)
        return {
            kind: count
            for kind, count in sorted(kinds.items())
            if not is_known(kind) and not kind.startswith((COMM, "autopar.")) and "." in kind
        }

    @cached_property
    def communicated_bytes(self) -> int:
        """Bytes of collectives."""
        return sum(each.communicated_bytes for each in self.costs)


def evaluate(
    program: Program,
    cluster: Cluster,
    coords: Mapping[str, int] | None = None,
    *,
    model: CommunicationModel | None = None,
    axes_of: Mapping[str, Sequence[str]] | None = None,
) -> Evaluation:
    """Returns what a rank's program costs. Linear in its size; equal ops are priced once.

    Args:
        program: A serial, partitioned or executable program.
        cluster: The hardware.
        coords: The rank's coordinates; by default 0 everywhere, where blocks are largest.
        model: Prices communication; by default that of the program's mesh on the cluster.
        axes_of: The mesh axes of process groups by name; needed for executable programs only.
    """
    if model is None and program.mesh is not None:
        model = CommunicationModel(cluster, program.mesh)
    evaluator = Evaluator(program, cluster, coords or {}, model, axes_of or {})
    return evaluator.evaluation(program.main)


def evaluate_together(
    programs: Sequence[tuple[Program, Mapping[str, int]]],
    cluster: Cluster,
    *,
    model: CommunicationModel | None = None,
    axes_of: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Evaluation, ...]:
    """Returns what ranks cost that run different programs and communicate.

    Args:
        programs: The programs, each with the coordinates of a rank that runs it.
        cluster, model, axes_of: See `evaluate`.
    """
    coords = [each for _, each in programs]
    apart = {axis for axis in coords[0] if len({each[axis] for each in coords}) > 1}
    priced = []
    for program, at in programs:
        if model is None and program.mesh is not None:
            model = CommunicationModel(cluster, program.mesh)
        evaluator = Evaluator(program, cluster, at, model, axes_of or {})
        priced.append((evaluator.run(program.main, apart), evaluator.inside))
    found = clocks([run for run, _ in priced])
    return tuple(
        Evaluation(run.function.ops, tuple(run.costs), clock, inside)
        for (run, inside), clock in zip(priced, found, strict=True)
    )


class Evaluator:
    """Prices the ops of one program on one rank, equal ones once.

    Args:
        program: The program.
        cluster: The hardware.
        coords: The rank's coordinates; 0 where they aren't given.
        model: Prices communication.
        axes_of: The mesh axes of process groups by name.

    Attributes:
        inside: What a run of each function costs that was called, by its name.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        coords: Mapping[str, int],
        model: CommunicationModel | None,
        axes_of: Mapping[str, Sequence[str]],
    ) -> None:
        axes = program.mesh.dim_names if program.mesh is not None else ()
        self.program = program
        self.cluster = cluster
        self.coords = AsPlanned({**dict.fromkeys(axes, 0), **coords})
        self.model = model
        self.axes_of = axes_of
        self._priced: dict[object, OpCost] = {}
        self.inside: dict[str, Evaluation] = {}

    @classmethod
    def of_ops(cls, model: CommunicationModel) -> Evaluator:
        """Returns what prices single ops of a rank, the one whose coordinates are all 0.

        Args:
            model: Prices communication.
        """
        return cls(Program({}, mesh=model.mesh), model.cluster, {}, model, {})

    def evaluation(self, function: Function) -> Evaluation:
        """Returns what a function of the program costs."""
        run = self.run(function)
        (clock,) = clocks([run])
        return Evaluation(function.ops, tuple(run.costs), clock, self.inside)

    def run(self, function: Function, apart: AbstractSet[str] = frozenset()) -> Run:
        """Returns what the ops of a function cost, for a clock.

        Args:
            function: The function.
            apart: The mesh axes along which ranks run different programs.
        """
        values = {name: value_at(value, self.coords) for name, value in function.values.items()}
        costs = tuple(self.cost(op, values) for op in function.ops)
        links = {
            at: link_of(op) or " ".join(self._axes(op))
            for at, op in enumerate(function.ops)
            if apart and is_collective(op.kind) and not apart.isdisjoint(self._axes(op))
        }
        calls = {
            at: self._called(op).overlapped_seconds * trip_of(op)
            for at, op in enumerate(function.ops)
            if op.kind in CALLS
        }
        return Run(function, costs, links, calls)

    def cost(self, op: Op, values: Mapping[str, Value]) -> OpCost:
        """Returns what an op costs.

        Args:
            op: The op.
            values: The values around it, with local shapes that are integers.
        """
        if op.kind in FREE or op.kind in ENDED:
            return NOTHING
        if op.kind in STARTED:
            return self._transfer(op, values)
        if op.kind in CALLS:
            return self._call(op)
        if is_collective(op.kind):
            return self._collective(op, values)
        return self._compute(op, values)

    def _compute(self, op: Op, values: Mapping[str, Value]) -> OpCost:
        around = [values[name] for name in (*op.operands, *op.results)]
        key = (
            op.kind,
            is_on_host(op),
            tuple(_plain(arg) for _, arg in op.args),
            len(op.results),
            *((each.shape, each.dtype) for each in around),
        )
        found = self._priced.get(key)
        if found is None:
            found = self._priced[key] = self._price(op, values, around)
        return found

    def _price(self, op: Op, values: Mapping[str, Value], around: Sequence[Value]) -> OpCost:
        types = tuple(TensorType(each.global_shape, each.dtype) for each in around)
        if all(0 in kind.shape for kind in types[len(types) - len(op.results) :]):
            return NOTHING
        args = op_args_at(op, self.coords)
        kind = functional_kind(op.kind)
        rule = rule_of(replace(op, kind=kind, args=args), values)
        whole = OpDist(_ALONE)
        moved = local_bytes(rule, whole, types)
        if is_on_host(op):
            return OpCost(host_seconds=self.cluster.host_seconds(moved))
        seconds = op_seconds(op.kind, rule, whole, types, self.cluster)
        return OpCost(product_flops(kind, rule), moved, compute_seconds=seconds)

    def _collective(self, op: Op, values: Mapping[str, Value]) -> OpCost:
        declaration = declared(op.kind, op.loc)
        operand, result = values[op.operands[0]], values[op.results[0]]
        axes = self._axes(op)
        if self.model is None or not axes:
            return NOTHING
        reads_args = declaration.halo or declaration.apart
        args = dict(op_args_at(op, self.coords)) if reads_args else {}
        moved = args, operand.known_shape, result.known_shape, result.itemsize
        if link_of(op) and receivers_of(op) == 1:
            declaration = replace(declaration, price=POINT_TO_POINT)
        stored = math.prod(result.known_shape) * result.itemsize
        seconds = collective_seconds(declaration, *moved, axes, self._model_of(op, self.model))
        return OpCost(
            communicated_bytes=communicated_bytes(declaration, *moved),
            communication_seconds=seconds + self.model.local_copy(stored),
        )

    def _transfer(self, op: Op, values: Mapping[str, Value]) -> OpCost:
        value = values[op.results[0]]
        nbytes = math.prod(value.known_shape) * value.itemsize
        seconds = self.cluster.transfer_seconds(nbytes)
        return OpCost(transferred_bytes=nbytes, transfer_seconds=seconds)

    def _axes(self, op: Op) -> tuple[str, ...]:
        return axes_of_group(op) or tuple(self.axes_of.get(str(op.arg("group")), ()))

    def _model_of(self, op: Op, model: CommunicationModel) -> CommunicationModel:
        """Returns what prices the collectives of the part of the mesh on which an op runs."""
        runs = runs_of_group(op)
        return model.on(model.mesh.root.at(runs.items())) if runs else model

    def _called(self, op: Op) -> Evaluation:
        """Returns what a function costs that an op calls."""
        name = callee_of(op)
        if name not in self.inside:
            self.inside[name] = self.evaluation(self.program.functions[name])
        return self.inside[name]

    def _call(self, op: Op) -> OpCost:
        one, trip = self._called(op), trip_of(op)
        return OpCost(
            one.flops * trip,
            sum(each.moved_bytes for each in one.costs) * trip,
            one.communicated_bytes * trip,
            one.compute_seconds * trip,
            one.communication_seconds * trip,
            sum(each.transferred_bytes for each in one.costs) * trip,
            one.transfer_seconds * trip,
        )


_ALONE = ProcessMesh.of_shape((1,), ("alone",))
"""The mesh of a single process, for ops whose shapes are local already."""


def _plain(arg: Arg) -> Arg:
    """Returns an argument without the names of values, on which costs don't depend."""
    if isinstance(arg, tuple):
        return tuple(_plain(item) for item in arg)
    return None if isinstance(arg, Ref) else arg
