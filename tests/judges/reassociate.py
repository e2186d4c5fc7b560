"""Runs a serial program with every floating-point sum added up in another order.

A contracted dimension may be permuted in all tensors that it indexes without changing the result,
but for rounding. So this shows by how much a program amplifies rounding, with no parallelism in
it. Which dimensions are contracted is read from the ops' rules, those of their bodies included.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autopar.ir.ops import rule_of
from autopar.ir.program import Arg, Op, Program, Ref
from autopar.ir.rules.rule import Rule
from autopar.runtime.kernels.table import kernel, to_torch


def run_reassociated(
    program: Program, inputs: Mapping[str, Tensor], seed: int
) -> dict[str, Tensor]:
    """Returns the outputs by label of a serial program whose sums are added in another order.

    Args:
        program: A serial program of one function without calls.
        inputs: All inputs of main by value name, weights included.
        seed: Of the order.
    """
    random = torch.Generator().manual_seed(seed)
    values = dict(inputs)
    main = program.main
    for op in main.ops:
        rule = rule_of(op, main.values)
        orders = _orders(rule, random) if rule else {}
        operands = [values[name] for name in op.operands]
        if rule:
            operands = [
                _permuted(tensor, dims, orders, False)
                for tensor, dims in zip(operands, rule.operands, strict=True)
            ]
        results = _run(op, operands)
        for at, (name, tensor) in enumerate(zip(op.results, results, strict=True)):
            values[name] = _permuted(tensor, rule.results[at], orders, True) if rule else tensor
    return {port.user_label: values[port.name] for port in program.signature.outputs}


def _orders(rule: Rule, random: torch.Generator) -> dict[str, Tensor]:
    """Returns a random order for each factor that is summed over by the op or by a body of it."""
    summed = {
        factor
        for each in (rule, *(body.rule for body in rule.bodies))
        for (factor, _), monoid in each.reduce.items()
        if monoid == "sum"
    }
    alone = {
        name
        for name in summed
        if all(
            len(dim) == 1 for dims in (*rule.operands, *rule.results) for dim in dims if name in dim
        )
    }
    free = [name for name in rule.sizes if name in alone and name not in rule.flat]
    return {name: torch.randperm(rule.sizes[name], generator=random) for name in free}


def _permuted(
    tensor: Tensor, dims: tuple[tuple[str, ...], ...], orders: Mapping[str, Tensor], back: bool
) -> Tensor:
    for at, dim in enumerate(dims):
        if len(dim) == 1 and dim[0] in orders:
            order = orders[dim[0]]
            tensor = tensor.index_select(at, order.argsort() if back else order)
    return tensor


def _run(op: Op, operands: list[Tensor]) -> list[Tensor]:
    fresh = iter(operands)

    def filled(arg: Arg) -> object:
        if isinstance(arg, Ref):
            return next(fresh)
        if isinstance(arg, tuple):
            return [filled(item) for item in arg]
        return to_torch(arg)

    with torch.no_grad():
        found = kernel(op.kind)(**{name: filled(arg) for name, arg in op.args})
    return list(found) if isinstance(found, (tuple, list)) else [found]
