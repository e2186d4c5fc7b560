"""Communication: the most expensive collectives of a program, with the user's lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.base.errors import Loc
from autopar.cost import CommunicationModel, OpCost, evaluate
from autopar.ir.collectives import COMM, is_collective
from autopar.ir.program import Op
from autopar.pipeline.decided import Decided


@dataclass(frozen=True)
class Expense:
    """Collectives of one kind over the same axes that come from the same line.

    Attributes:
        kind: `all_reduce`, `all_gather`, ...
        axes: The mesh axes.
        count: How often a rank runs one.
        seconds: Predicted, of all of them one after another.
        bytes: The larger of operand and result, summed up.
        phase: Forward, backward or update.
        loc: The line of the op that needs the result.
        reasons: What they do: `reshard of %x from [...] to [...]`, of the first ones.
        algorithm: How the first is carried out, as the prediction assumes.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    seconds: float
    bytes: int
    phase: str
    loc: Loc
    reasons: tuple[str, ...]
    algorithm: str


def expenses(decided: Decided) -> tuple[Expense, ...]:
    """Returns the collectives of a program's main function, by line, the most expensive first."""
    model = decided.problem.planner.model
    found = evaluate(decided.ranks, decided.options.cluster, model=model)
    groups: dict[tuple[object, ...], list[tuple[Op, OpCost]]] = {}
    for op, cost in zip(found.ops, found.costs, strict=True):
        if is_collective(op.kind):
            groups.setdefault(_key(op), []).append((op, cost))
    rows = [_expense(members, model) for members in groups.values()]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _expense(members: Sequence[tuple[Op, OpCost]], model: CommunicationModel) -> Expense:
    first, cost = members[0]
    kind, axes = first.kind.removeprefix(COMM), _axes(first)
    model = model if first.dist is None else model.on(first.dist.mesh)
    ways = model.algorithms(kind, cost.communicated_bytes, axes)
    return Expense(
        kind,
        axes,
        len(members),
        sum(cost.seconds for _, cost in members),
        sum(cost.communicated_bytes for _, cost in members),
        first.phase,
        first.loc,
        tuple(dict.fromkeys(op.origin.detail for op, _ in members if op.origin is not None)),
        ", ".join(f"{way.algorithm} on {way.level}" for way in ways),
    )


def _key(op: Op) -> tuple[object, ...]:
    place = (op.loc.file, op.loc.line) if op.loc.line else op.loc
    return op.kind, _axes(op), place, op.phase


def _axes(op: Op) -> tuple[str, ...]:
    axes = op.arg("axes", ())
    return tuple(map(str, axes)) if isinstance(axes, tuple) else ()
