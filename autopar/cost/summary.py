"""What one rank's program does: communication, weights, arithmetic.

All ranks of a class run one program. Blocks never grow with a coordinate, so the rank with all
coordinates 0 stores and computes most, and the last one least: looking at these two is enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from autopar.cost.communicated import received_bytes
from autopar.cost.flops import product_flops
from autopar.ir.collectives import COMM, declared, is_collective
from autopar.ir.dtypes import DTYPE_BYTES
from autopar.ir.expr.at_rank import op_args_at, value_at
from autopar.ir.expr.expression import AsPlanned, evaluate
from autopar.ir.ops import functional_kind, rule_of
from autopar.ir.program import CALL, REPEAT, Op, Port, Program, Value, callee_of

WEIGHT_ROLES = ("parameter", "buffer", "state", "constant")
STATE_ROLES = ("optimizer_state",)
BUFFER_ROLES = ("buffer", "state")


@dataclass(frozen=True, slots=True)
class CollectiveCount:
    """All collectives of one kind in the same process group.

    Attributes:
        kind: `all_reduce`, `all_gather`, ...
        group: The process group; before mapping the mesh axes, joined by `_`.
        count: How many a rank takes part in.
        bytes: Sum of the sizes of their results; of redistributions, what the busiest rank gets.
    """

    kind: str
    group: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RankSummary:
    """A rank's program at a glance.

    Attributes:
        collectives: In order of kind and group.
        weight_bytes: Bytes of weights that the rank holds.
        flops: Of products (see `autopar.cost.flops`).
    """

    collectives: tuple[CollectiveCount, ...]
    weight_bytes: int
    flops: int


def summarize_rank(program: Program, coords: Mapping[str, int]) -> RankSummary:
    """Returns the summary of a partitioned or executable program on the rank at `coords`."""
    coords = AsPlanned(coords)
    counts = _Counts(program, coords)
    counts.add("main", 1)
    return RankSummary(
        tuple(CollectiveCount(*key, *totals) for key, totals in sorted(counts.collectives.items())),
        weight_bytes(program.signature.inputs, coords),
        counts.flops,
    )


def weight_bytes(
    ports: Iterable[Port], coords: Mapping[str, int], roles: Collection[str] = WEIGHT_ROLES
) -> int:
    """Returns the bytes of weights that the rank at these coordinates holds.

    Args:
        ports: The program's inputs.
        coords: The rank's coordinates.
        roles: Which inputs count.
    """
    known = AsPlanned(coords)
    return sum(
        math.prod(evaluate(sub.length, known) for dim in port.box for sub in dim)
        * DTYPE_BYTES[port.dtype]
        for port in ports
        if port.role in roles
    )


class _Counts:
    """Totals over a rank's ops, callees as often as they are called."""

    def __init__(self, program: Program, coords: Mapping[str, int]) -> None:
        self.program = program
        self.coords = coords
        self.collectives: dict[tuple[str, str], tuple[int, int]] = {}
        self.flops = 0

    def add(self, name: str, times: int) -> None:
        function = self.program.functions[name]
        values = {key: value_at(value, self.coords) for key, value in function.values.items()}
        for op in function.ops:
            if is_collective(op.kind):
                self._add_collective(op, values, times)
            elif (callee := _callee(op)) is not None:
                self.add(callee[0], times * callee[1])
            else:
                self._add_flops(op, values, times * op.times)

    def _add_collective(self, op: Op, values: Mapping[str, Value], times: int) -> None:
        axes = op.arg("axes", ())
        joined = "_".join(str(axis) for axis in axes) if isinstance(axes, tuple) else ""
        key = (op.kind.removeprefix(COMM), str(op.arg("group", joined)))
        count, total = self.collectives.get(key, (0, 0))
        declaration = declared(op.kind, op.loc)
        args = dict(op_args_at(op, self.coords)) if declaration.halo else {}
        results = (values[name] for name in op.results)
        size = sum(
            received_bytes(declaration, args, one.known_shape, one.itemsize) for one in results
        )
        self.collectives[key] = (count + times, total + times * size)

    def _add_flops(self, op: Op, values: Mapping[str, Value], times: int) -> None:
        if any(0 in values[name].shape for name in op.operands):
            return
        args = op_args_at(op, self.coords)
        kind = functional_kind(op.kind)
        rule = rule_of(replace(op, kind=kind, args=args), values)
        self.flops += times * product_flops(kind, rule)


def _callee(op: Op) -> tuple[str, int] | None:
    if op.kind == CALL:
        return callee_of(op), 1
    trip = op.arg("trip")
    if op.kind == REPEAT and isinstance(trip, int):
        return callee_of(op), trip
    return None
