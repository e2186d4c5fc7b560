"""Open sizes in a captured graph: what is computed of them stands in the ops that read it.

Each size of the batch that stays open is a symbol without an example (see `OpenSizes`), so that
nothing that code does is decided by the size that the example happens to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from autopar.frontend.lower.open_sizes import OpenArgument, is_static
from autopar.frontend.lower.source_line import source_line
from autopar.frontend.torch.conditions.narrowing import ExampleSizes, SizeDecides
from autopar.frontend.torch.refusals import Untraceable
from autopar.ir.expr.facts import may_be

aten = torch.ops.aten

_SQUEEZES = frozenset(
    getattr(packet, overload)
    for packet in (aten.squeeze, aten.squeeze_, aten.squeeze_copy)
    for overload in ("default", "dim", "dims")
)
_STRIDED = (aten.as_strided.default, aten.as_strided_scatter.default)


def check_op(func: Any, args: Sequence[Any], sizes: ExampleSizes) -> None:
    """Refuses an op whose result has another rank at some sizes than torch takes for granted.

    Raises:
        SizeDecides: If so.
    """
    if func not in _SQUEEZES or not isinstance(args[0], Tensor):
        return
    shape = args[0].shape
    dims = range(len(shape)) if len(args) == 1 else args[1]
    for dim in [dims] if isinstance(dims, int) else dims:
        size = shape[dim] if shape else 1
        if isinstance(size, torch.SymInt) and may_be(sizes.expr(size), 1):
            alone = sympy.Eq(size.node.expr, 1)
            if sizes.decided(alone) is not False:
                raise SizeDecides(sizes.refusal(alone))


def take_sizes(graph: fx.Graph) -> None:
    """Puts open sizes as arguments into the ops of a graph that read them.

    Raises:
        Untraceable: If an op reads another number that depends on them, as a fraction. Names the
            user's line.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor):
            _check_numbers(node)
    for node in reversed(list(graph.nodes)):
        value = node.meta.get("val")
        if node.op != "call_function" or isinstance(value, (Tensor, list, tuple)):
            continue
        if isinstance(value, torch.SymInt):
            for user in list(node.users):
                _put(user, node, OpenArgument(value))
        if _is_symbolic(value) and not node.users:
            graph.erase_node(node)


def _is_symbolic(value: object) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _check_numbers(node: fx.Node) -> None:
    numbers = [each.meta.get("val") for each in node.all_input_nodes]
    if any(isinstance(number, (torch.SymFloat, torch.SymBool)) for number in numbers):
        raise Untraceable(
            f"{source_line(node)}: this line computes with a number that depends on an open size"
            " and isn't whole; make a tensor of the size, as torch.full((), x.shape[0]), and"
            " compute with that"
        )
    tensors = [each for each in (node.meta["val"], *numbers) if isinstance(each, Tensor)]
    if node.target in _STRIDED and not all(map(is_static, tensors)):
        raise Untraceable(
            f"{source_line(node)}: this line views memory in strides that depend on an open size;"
            " use reshape, permute and slices"
        )


def _put(user: fx.Node, node: fx.Node, size: OpenArgument) -> None:
    def put(each: fx.Node) -> Any:
        return size if each is node else each

    user.args = fx.node.map_arg(user.args, put)
    user.kwargs = fx.node.map_arg(user.kwargs, put)
