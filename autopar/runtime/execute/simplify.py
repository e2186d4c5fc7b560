"""Leaves out what a rank need not do: views of views, and ops that return their operand as it is.

Exporters write chains of them, passes add some, and on a rank a slice may turn out to take all.
Each would be a call of a kernel. What the others compute stays the same to the bit.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.ops.shape.view import RESHAPES, SAME_WITH_SAME_SIZES
from autopar.ir.program import Function, Op, Program


def without_needless(program: Program) -> Program:
    """Returns a rank's program whose functions are simplified."""
    functions = {name: simplified(function) for name, function in program.functions.items()}
    return replace(program, functions=functions)


def simplified(function: Function) -> Function:
    """Returns a rank's function without needless ops, under the names that it had."""
    renamed: dict[str, str] = {}
    viewed: dict[str, str] = {}
    ops: list[Op] = []
    for op in function.ops:
        now = op.with_operands([renamed.get(name, name) for name in op.operands])
        if _returns_its_operand(now, function):
            renamed[now.results[0]] = now.operands[0]
            continue
        if now.kind in RESHAPES:
            (operand,), (result,) = now.operands, now.results
            viewed[result] = viewed.get(operand, operand)
            now = now.with_operands([viewed[result]])
        ops.append(now)
    if len(ops) == len(function.ops) and not viewed:
        return function
    return _without_unread_views(replace(function, ops=tuple(ops)))


def _returns_its_operand(op: Op, function: Function) -> bool:
    if op.kind not in SAME_WITH_SAME_SIZES or op.results[0] in function.outputs:
        return False
    (operand,), (result,) = op.operands, op.results
    return function.values[operand].shape == function.values[result].shape


def _without_unread_views(function: Function) -> Function:
    read = {*function.outputs}
    ops: list[Op] = []
    for op in reversed(function.ops):
        if op.kind not in RESHAPES or op.results[0] in read:
            read.update(op.operands)
            ops.append(op)
    made = {*function.inputs, *(name for op in ops for name in op.results)}
    values = {name: value for name, value in function.values.items() if name in made}
    return replace(function, values=values, ops=tuple(reversed(ops)))
