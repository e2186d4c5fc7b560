"""Ops that are written over an operand, so that a loop takes no more memory than it must.

    %total.s1 = aten.add.Tensor(self=%total, other=%part) plan(adds=grad)

A functional sum holds the total so far, the part, and the new total. Nobody else reads the one so
far, so the new total may take its place; a matrix product is added to it without being there.
What other ops of an iteration make may take the place of what they read last, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from autopar.ir import emitted
from autopar.ir.dtypes import HALVES
from autopar.ir.program import Function, Op

ADDS = "adds"
"""The plan field of ops that add to a total; its text is what they add up."""


OVER = "over"
"""The plan field of other ops that may be written over what they read; its text is `operand`."""


def in_place(monoid: str, total: str) -> tuple[str, str]:
    """Returns the plan field of an op that reduces a part with what others have, over that.

    Args:
        monoid: The reduction.
        total: What it is a part of.
    """
    return (ADDS, total) if monoid == "sum" else (OVER, "operand")


def may_overwrite(op: Op) -> bool:
    """Returns whether an op is wanted over what it reads, where nobody else reads that.

    So are sums of gradients: where a parameter is read twice, each takes as much as that.
    """
    is_sum = op.kind == emitted.ADD and op.phase == "backward"
    return is_sum or any(name in (ADDS, OVER) for name, _ in op.plan)


def adds(op: Op) -> bool:
    """Returns whether an op adds to a total."""
    return any(name == ADDS for name, _ in op.plan)


class _Product(NamedTuple):
    """A matrix product that is added to a total.

    Attributes:
        op: The product.
        cast: What makes it as wide as the total; None if it is.
    """

    op: Op
    cast: Op | None

    def added_to(self, total: str, op: Op) -> Op:
        """Returns what adds it to a total, in the place of another op."""
        added = emitted.added_product(total, *self.op.operands, is_cast=self.cast is not None)
        return replace(op, kind=added.kind, args=added.args)


def with_products_added(main: Function) -> Function:
    """Returns a function in which products that are added to totals are added by one op.

    A total of 32 bits that begins with a product of 16-bit values begins with zeros instead, to
    which that is added as it is before it is rounded.
    """
    values, products, first = dict(main.values), _Products(main), dict[tuple[str, ...], _Product]()
    added = dict[tuple[str, ...], _Product]()
    for op in filter(adds, main.ops):
        total, part = op.operands
        if found := products.read_as(part):
            added[op.results] = found
        if (begun := products.read_as(total)) and begun.cast:
            first[begun.cast.results] = begun
    gone = {op.results for each in (*added.values(), *first.values()) for op in each if op}
    ops = list[Op]()
    for op in main.ops:
        if op.results in added:
            ops.append(added[op.results].added_to(op.operands[0], op))
        elif op.results in first:
            (name,) = op.results
            zeros = emitted.unused(f"{name}.zeros", values)
            values[zeros] = replace(values[name], name=zeros)
            made = emitted.full(values[name].shape, 0, values[name].dtype)
            ops.append(replace(made.instead_of(op, zeros), plan=()))
            op = replace(op, plan=(*op.plan, (ADDS, name)))
            ops.append(first[op.results].added_to(zeros, op))
        elif op.results not in gone:
            ops.append(op)
    used = {*main.inputs, *(name for op in ops for name in op.results)}
    values = {name: value for name, value in values.items() if name in used}
    return replace(main, values=values, ops=tuple(ops)) if gone else main


class _Products:
    """The products of a function that one op alone reads, as they are or cast.

    Args:
        main: The function.
    """

    def __init__(self, main: Function) -> None:
        self._main, self._made = main, main.producers()
        self._read = Counter(name for op in main.ops for name in op.operands)
        self._read.update(main.outputs)

    def read_as(self, name: str) -> _Product | None:
        """Returns the product that a value is; None if it is none, or others read it."""
        op = self._maker(name)
        cast = op if op is not None and self._is_widening(op) else None
        op = op if cast is None else self._maker(cast.operands[0])
        return _Product(op, cast) if op is not None and emitted.is_product(op) else None

    def _maker(self, name: str) -> Op | None:
        return self._made.get(name) if self._read[name] == 1 else None

    def _is_widening(self, op: Op) -> bool:
        """Whether an op casts a 16-bit value to 32 bits, and does nothing else."""
        if op.kind != emitted.TO_DTYPE or len(op.args) != 2:
            return False
        before, after = (self._main.values[name].dtype for name in (*op.operands, *op.results))
        return before in HALVES and after == "f32"
