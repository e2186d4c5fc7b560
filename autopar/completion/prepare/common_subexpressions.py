"""Common subexpressions: a value that is moved in the same way by several ops is moved once.

Exported linear layers each take their own view of one activation. As different values, the views
would be resharded one by one.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.ops import rule_of
from autopar.ir.ops.table import MOVED
from autopar.ir.program import Function, Op, Ref


def share_moves(function: Function) -> Function:
    """Returns the function with one op for all that move a value in the same way.

    Values that are pinned or returned stay, as they are the user's. Of the others in a group the
    first by name stays, whatever the order of independent ops.
    """
    kept = {*function.outputs, *(v.name for v in function.values.values() if v.dist is not None)}
    groups: dict[object, list[Op]] = {}
    first: dict[str, str] = {}
    ops: list[Op] = []
    for op in function.ops:
        op = op.with_operands([first.get(name, name) for name in op.operands])
        if kept.isdisjoint(op.results) and is_move(op, function):
            group = groups.setdefault(_key(op), [])
            group.append(op)
            first[op.results[0]] = group[0].results[0]
            if len(group) > 1:
                continue
        ops.append(op)
    if all(len(group) == 1 for group in groups.values()):
        return function
    stays = {
        group[0].results[0]: min(group, key=lambda op: op.results) for group in groups.values()
    }
    names = {name: stays[start].results[0] for name, start in first.items()}
    gone = first.keys() - set(names.values())
    values = {name: value for name, value in function.values.items() if name not in gone}
    ops = [stays.get(op.results[0], op) if op.results else op for op in ops]
    renamed = [op.with_operands([names.get(name, name) for name in op.operands]) for op in ops]
    return replace(function, values=values, ops=tuple(renamed))


def is_move(op: Op, function: Function) -> bool:
    """Whether an op moves the elements of its one operand to its one result."""
    if len(op.results) != 1 or len(op.operands) != 1:
        return False
    rule = rule_of(op, function.values)
    return rule is not None and not rule.work and rule.linear == MOVED


def _key(op: Op) -> object:
    # As text, because 1, 1.0 and True are equal keys but different arguments.
    args = tuple((name, arg if isinstance(arg, Ref) else repr(arg)) for name, arg in op.args)
    return op.kind, args, op.stage, op.lifetime
