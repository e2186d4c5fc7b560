"""The layouts around an op: what it needs its operands in and leaves its results in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autopar.base.errors import VerificationError
from autopar.cost.windows import WindowWay, window_ways
from autopar.ir.dims import DimLayout, block_size, dim_axes
from autopar.ir.expr.facts import may_be
from autopar.ir.layout import Layout
from autopar.ir.mesh import ProcessMesh
from autopar.ir.nothing import IDENTITY
from autopar.ir.ops import rule_of
from autopar.ir.program import CALL, REPEAT, Arg, Function, Op, OpDist, Program, Value, refs
from autopar.ir.rules.alike import call_key
from autopar.ir.rules.distribution import (
    consumed,
    produced,
    rank_call,
    replicated,
    split_axes,
)
from autopar.ir.rules.rule import SAME, Rule
from autopar.ir.text import print_op


@dataclass(frozen=True, slots=True)
class Interface:
    """What partition needs to know of an op.

    Attributes:
        needs: Layout of each operand, in the order of `Op.operands`.
        gives: Layout of each result.
        kind: The op that a rank runs.
        args: Arguments that differ from the serial op's.
        plan: Plan entries to add.
        windows: Ways to the windows through which operands are read, by position.
    """

    needs: tuple[Layout, ...]
    gives: tuple[Layout, ...]
    kind: str
    args: Mapping[str, Arg]
    plan: tuple[tuple[str, str], ...] = ()
    windows: Mapping[int, tuple[WindowWay, ...]] = field(default_factory=dict)


class Interfaces:
    """Derives the interfaces of a program's ops; equal ops are derived once.

    Args:
        program: The completed and legalized program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[object, Interface] = {}

    def interface_of(self, op: Op, function: Function) -> Interface:
        """Returns the interface of an op of a function.

        Raises:
            VerificationError: If the op isn't complete, or its choice doesn't fit its rule.
        """
        dist = op.dist
        if dist is None or dist.body:
            why = "has no distribution" if dist is None else f"still has the body {dist.body!r}"
            raise _error(op, f"{why}; partition needs a completed and legalized program")
        if op.kind in _CONTROL:
            return _CONTROL[op.kind](self.program, op, dist, function)
        key = call_key(op, dist, function.values)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _derive(op, dist, function.values)
        return found


def _error(op: Op, why: str) -> VerificationError:
    return VerificationError("can't partition", [f"{print_op(op, {})}: {why}"])


def _derive(op: Op, dist: OpDist, values: Mapping[str, Value]) -> Interface:
    try:
        rule = rule_of(op, values)
        if rule is None:
            return _without_rule(op, dist, values)
        _check(rule, op, dist)
        return _with_rule(rule, op, dist)
    except VerificationError:
        raise
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise _error(op, f"its distribution doesn't fit its rule: {error!r}") from error


def _without_rule(op: Op, dist: OpDist, values: Mapping[str, Value]) -> Interface:
    if dist.factors or dist.pending:
        raise _error(op, "has no rule, so it can't be split; complete it as replicated")
    return Interface(
        tuple(replicated(dist.mesh, values[name].global_shape) for name in op.operands),
        tuple(replicated(dist.mesh, values[name].global_shape) for name in op.results),
        op.kind,
        {},
    )


def _check(rule: Rule, op: Op, dist: OpDist) -> None:
    if len(rule.operands) != len(op.operands) or len(rule.results) != len(op.results):
        raise _error(op, f"its rule {rule} is for other numbers of operands or results")
    for factor, dim in dist.factors:
        if factor not in rule.sizes:
            raise _error(op, f"its rule {rule} has no factor {factor!r}")
        if factor in rule.whole and dim_axes(dim):
            raise _error(op, f"factor {factor!r} of its rule {rule} must not be split")


def _with_rule(rule: Rule, op: Op, dist: OpDist) -> Interface:
    kind, args = rank_call(rule, dist, op.kind)
    return Interface(
        tuple(consumed(rule, dist, position) for position in range(len(rule.operands))),
        tuple(produced(rule, dist, position) for position in range(len(rule.results))),
        kind,
        args,
        _identity(rule, dist),
        {
            position: ways
            for position in range(len(rule.operands))
            if (ways := window_ways(rule, dist, position))
        },
    )


def _identity(rule: Rule, dist: OpDist) -> tuple[tuple[str, str], ...]:
    """What a rank with no part of a split reduction contributes: each result's identity.

    Nothing if it contributes to a result that isn't pending, or holds what counts once: then the op
    must run.
    """
    if any(split_axes(dist, factor) for factor in rule.once):
        return ()
    empty = [factor for factor, dim in dist.factors if _may_be_empty(dim, dist.mesh)]
    monoids = [
        {rule.reduce[factor, position] for factor in empty if (factor, position) in rule.reduce}
        for position in range(len(rule.results))
    ]
    if not any(monoids) or any(SAME in kinds for kinds in monoids):
        return ()
    return ((IDENTITY, ",".join(min(kinds, default="-") for kinds in monoids)),)


def _may_be_empty(dim: DimLayout, mesh: ProcessMesh) -> bool:
    """Whether the last process along the axes of a dimension holds none of it."""
    for sub in dim:
        parts = mesh.axes_size(sub.axes)
        if not isinstance(sub.size, int):
            return parts > 1 or may_be(sub.size, 0)
        if (parts - 1) * block_size(sub.size, parts) >= sub.size:
            return True
    return False


def _stored(function: Function, name: str, op: Op) -> Layout:
    layout = function.values[name].dist
    if layout is None:
        raise _error(op, f"%{name} of @{function.name} has no layout")
    return layout.normalized()


def _callee(program: Program, op: Op, argument: str) -> Function:
    name = op.arg(argument)
    if not isinstance(name, str) or name not in program.functions:
        raise _error(op, f"there is no function @{name}")
    return program.functions[name]


def is_distributed(function: Function) -> bool:
    """Whether a function was completed; if not, every rank runs all of it."""
    return all(function.values[name].dist is not None for name in function.inputs) and all(
        op.dist is not None for op in function.ops
    )


def _call(program: Program, op: Op, dist: OpDist, function: Function) -> Interface:
    callee = _callee(program, op, "callee")
    if not is_distributed(callee):
        return _without_rule(op, dist, function.values)
    return Interface(
        tuple(_stored(callee, name, op) for name in callee.inputs),
        tuple(_stored(callee, name, op) for name in callee.outputs),
        op.kind,
        {},
    )


def _repeat(program: Program, op: Op, dist: OpDist, function: Function) -> Interface:
    body = _callee(program, op, "body")
    if not is_distributed(body):
        return _without_rule(op, dist, function.values)
    trip = op.arg("trip")
    carried = len(list(refs(op.arg("carried", ()))))
    sliced = carried + len(list(refs(op.arg("sliced", ()))))
    if not isinstance(trip, int):
        raise _error(op, f"trip count {trip} is not an integer")
    needs = [_stored(body, name, op) for name in body.inputs]
    gives = [_stored(body, name, op) for name in body.outputs]
    if gives[:carried] != needs[:carried]:
        raise _error(op, f"what @{body.name} carries changes its layout on the way")
    stacked = [layout.stacked(trip) for layout in needs[carried:sliced]]
    return Interface(
        (*needs[:carried], *stacked, *needs[sliced:]),
        (*gives[:carried], *(layout.stacked(trip) for layout in gives[carried:])),
        op.kind,
        {},
    )


def _barrier(program: Program, op: Op, dist: OpDist, function: Function) -> Interface:
    layouts = tuple(_stored(function, name, op) for name in op.operands)
    return Interface(layouts, layouts, op.kind, {})


_CONTROL: Mapping[str, Callable[[Program, Op, OpDist, Function], Interface]] = {
    CALL: _call,
    REPEAT: _repeat,
    "barrier": _barrier,
}
