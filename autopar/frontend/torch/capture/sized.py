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

from autopar.base.errors import InvalidInputError, Loc
from autopar.frontend.lower.open_sizes import OpenArgument, OpenSizes, is_static
from autopar.frontend.lower.source_line import source_line
from autopar.frontend.torch.capture.origin import is_user_code
from autopar.frontend.torch.refusals import Untraceable
from autopar.ir.builds.manifest import ReportEntry
from autopar.ir.expr.expression import UNBOUNDED, Size
from autopar.ir.expr.facts import may_be

aten = torch.ops.aten

NARROWED = "narrowed"
"""The category of entries about sizes that can't be all that the user said."""

_CONDITIONS = (sympy.core.relational.Relational, sympy.logic.boolalg.BooleanFunction)
_SQUEEZES = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
_STRIDED = (aten.as_strided.default, aten.as_strided_scatter.default)


class SizeDecides(InvalidInputError):
    """What code does depends on an open size."""


def decides(condition: Any, sizes: OpenSizes) -> str:
    """Returns why code is refused that does something else at other sizes, and what to do.

    Args:
        condition: What torch would have to know.
        sizes: The open sizes.
    """
    told, names = sizes.told(condition)
    whether = f", whether {told}" if isinstance(condition, _CONDITIONS) else ""
    ranges = sizes.deciding(condition)
    return (
        f"what this line does depends on the size of {names}{whether}; take {names} out of"
        " dynamic=, or give a range in which it always does the same"
        + (f", as {ranges!r}" if ranges else "")
    )


def check_op(func: Any, args: Sequence[Any], sizes: OpenSizes) -> None:
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
            raise SizeDecides(decides(sympy.Eq(size.node.expr, 1), sizes))


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


def narrowed(sizes: OpenSizes) -> list[ReportEntry]:
    """Narrows sizes to those for which what the code takes for granted holds.

    Returns:
        What they can't be.

    Raises:
        SizeDecides: If that isn't said by ranges of sizes.
    """
    first, lines = sizes.sizes, dict[str, Loc]()
    for part, stack in sizes.taken_for_granted():
        before = sizes.sizes
        sizes.is_made_true(part)
        for name, size in sizes.sizes.items():
            if size != before[name]:
                lines[name] = _line(stack)
    for part, stack in sizes.taken_for_granted():
        if not sizes.is_made_true(part):
            raise SizeDecides(f"{_line(stack)}: {decides(part, sizes)}")
    narrower = {name: size for name, size in sizes.sizes.items() if size != first[name]}
    return [
        ReportEntry(NARROWED, name, _range_text(size), lines[name])
        for name, size in narrower.items()
    ]


def _range_text(size: Size) -> str:
    if size.least == size.most:
        return f"always {size.least}"
    return f"at least {size.least}" + ("" if size.most == UNBOUNDED else f", at most {size.most}")


def _line(stack: Any) -> Loc:
    """Returns the innermost line of the user's code of a stack that torch noted."""
    frames = [] if stack is None else list(stack.summary())
    own = [frame for frame in frames if is_user_code(frame.filename)]
    return Loc(own[-1].filename, own[-1].lineno or 0) if own else Loc()
