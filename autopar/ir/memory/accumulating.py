"""Ops that are written over an operand, so that a loop takes no more memory than it must.

    %total.s1 = aten.add.Tensor(self=%total, other=%part) plan(adds=grad)

A functional sum holds the total so far, the part, and the new total. Nobody else reads the one so
far, so the new total may take its place; a matrix product is added to it without being there.
What other ops of an iteration make may take the place of what they read last, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autopar.ir import emitted
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


def with_products_added(main: Function) -> Function:
    """Returns a function in which products that are added to totals are added by one op."""
    made, products = main.producers(), {}
    read = Counter(name for op in main.ops for name in op.operands)
    read.update(main.outputs)
    for op in main.ops:
        if adds(op):
            total, part = op.operands
            product = made.get(part)
            if product is not None and read[part] == 1 and emitted.is_product(product):
                products[op.results] = (product, total)
    if not products:
        return main
    gone = {product.results for product, _ in products.values()}
    ops = []
    for op in main.ops:
        if op.results in products:
            product, total = products[op.results]
            added = emitted.added_product(total, *product.operands)
            ops.append(replace(op, kind=added.kind, args=added.args))
        elif op.results not in gone:
            ops.append(op)
    used = {*main.inputs, *(name for op in ops for name in op.results)}
    values = {name: value for name, value in main.values.items() if name in used}
    return replace(main, values=values, ops=tuple(ops))
