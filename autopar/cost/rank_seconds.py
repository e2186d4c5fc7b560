"""Seconds of the ops of a rank's program: kernels by roofline, collectives by their links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autopar.cost.cluster import Cluster
from autopar.cost.collectives import CommunicationModel
from autopar.cost.halo import exchange_seconds, halo_bytes
from autopar.ir.distribution import serial_points
from autopar.ir.expr import Expr, evaluate
from autopar.ir.mesh import ProcessMesh
from autopar.ir.ops import rule_of
from autopar.ir.ops.view import VIEWS
from autopar.ir.program import Arg, Op, Value


@dataclass
class RankSeconds:
    """Predicts the seconds of a partitioned program's ops on one rank.

    Attributes:
        values: The values of the function.
        coords: The rank's coordinates.
        cluster: The hardware.
        mesh: The program's mesh.
    """

    values: Mapping[str, Value]
    coords: Mapping[str, int]
    cluster: Cluster
    mesh: ProcessMesh
    _local: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = CommunicationModel(self.cluster, self.mesh)

    def of(self, op: Op) -> float:
        """Returns the seconds of an op; 0 for one that only looks at memory in another way."""
        around = {name: self._value(name) for name in (*op.operands, *op.results)}
        if op.kind.startswith("comm."):
            return self._collective(op, around)
        if op.kind in VIEWS or any(0 in value.shape for value in around.values()):
            return 0.0
        args = tuple((name, self._resolved(arg)) for name, arg in op.args)
        rule = rule_of(replace(op, args=args), around)
        nbytes = sum(map(_nbytes, around.values()))
        memory = nbytes / self.cluster.bytes_per_second
        peak = self.cluster.flops(around[(*op.operands, *op.results)[0]].dtype)
        compute = rule.work * serial_points(rule) / peak if rule is not None else 0.0
        return self.cluster.launch_seconds + max(compute, memory)

    def _value(self, name: str) -> Value:
        if name not in self._local:
            value = self.values[name]
            shape = tuple(evaluate(size, self.coords) for size in value.shape)
            self._local[name] = replace(value, shape=shape)
        return self._local[name]

    def _resolved(self, arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(self._resolved(item) for item in arg)
        return evaluate(arg, self.coords) if isinstance(arg, Expr) else arg

    def _collective(self, op: Op, around: Mapping[str, Value]) -> float:
        axes = op.arg("axes", ())
        names = tuple(map(str, axes)) if isinstance(axes, tuple) else ()
        given, made = around[op.operands[0]], around[op.results[0]]
        match op.kind.removeprefix("comm."):
            case "all_gather":
                return self.model.all_gather(_nbytes(made), names)
            case "reduce_scatter":
                return self.model.reduce_scatter(_nbytes(given), names)
            case "all_reduce":
                return self.model.all_reduce(_nbytes(made), names)
            case "all_to_all":
                return self.model.all_to_all(_nbytes(given), names)
            case "broadcast":
                return self.model.broadcast(_nbytes(made), names)
            case "redistribute":
                moved = halo_bytes(dict(op.args), made.global_shape, made.itemsize)
                return exchange_seconds(moved, names, self.model)
            case _:
                return self.model.point_to_point(_nbytes(made), names)


def _nbytes(value: Value) -> int:
    return math.prod(value.global_shape) * value.itemsize
