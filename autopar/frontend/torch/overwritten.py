"""Parameters that `forward` overwrites without a gradient, as weights that it clips.

`weight.data.clamp_(-1, 1)` changes a parameter before it is used. Autograd doesn't see it: the
gradient is that of the new content, and the optimizer goes on from there. Torch's tracing treats
each new content of a parameter as one more result, whose gradient it asks for. Where that is handed
on to the parameter as it is, the write had none of its own, and nobody gives it one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from autopar.frontend.torch.origin import is_backward
from autopar.ir.errors import InvalidInputError

aten = torch.ops.aten

_COPIES = (aten.alias.default, aten.clone.default, aten.detach.default)


class AssignedData(TorchFunctionMode):
    """Writes what is assigned to `tensor.data` into the tensor: tracing would drop it."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func != Tensor.data.__set__:  # type: ignore[attr-defined]
            return func(*args, **(kwargs or {}))
        old, new = args
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InvalidInputError(
                f"forward assigns {_described(new)} to .data of a tensor, which is"
                f" {_described(old)}: make a new tensor"
            )
        return old.detach().copy_(new.detach())


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def drop_tangent(tangent: fx.Node, old: fx.Node, new: fx.Node, refuse: Callable[[], None]) -> None:
    """Takes the gradient of a parameter's new content out of a joint graph.

    Args:
        tangent: The placeholder of the gradient.
        old: That of the parameter.
        new: Its new content.
        refuse: Called if the write had a gradient, or the backward pass reads what was there
            before, which PyTorch's finds overwritten.
    """
    if any(map(is_backward, _readers(_before(old, new)))) or not _handed_on(tangent):
        refuse()
    _drop(tangent)


def _before(old: fx.Node, new: fx.Node) -> set[fx.Node]:
    """Returns what a parameter's new content is made of, and views of it."""
    found = {old}
    for node in _between(old, new):
        if any(each in found for each in node.all_input_nodes):
            found.add(node)
    for node in old.graph.nodes:
        if (
            node is not new
            and _is_view(node)
            and any(each in found for each in node.all_input_nodes)
        ):
            found.add(node)
    return found


def _between(old: fx.Node, new: fx.Node) -> list[fx.Node]:
    """Returns all that a node needs and an input, in order, but the two."""
    needed = {new}
    order = []
    for node in reversed(list(old.graph.nodes)):
        if node in needed:
            needed.update(node.all_input_nodes)
            if node not in (old, new):
                order.append(node)
    return order[::-1]


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)


def _readers(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    return {user for node in nodes for user in node.users}


def _handed_on(tangent: fx.Node) -> bool:
    """Whether a gradient is only added to others, or returned."""
    for user in tangent.users:
        added = user.target is aten.add.Tensor and not user.kwargs
        kept = added or user.target in _COPIES
        if user.op != "output" and not (kept and _handed_on(user)):
            return False
    return True


def _drop(gradient: fx.Node) -> None:
    """Takes a gradient that is zero out of sums, and of what is returned."""
    for user in list(gradient.users):
        if user.op == "output":
            user.args = (tuple(None if n is gradient else n for n in _returned(user)),)
        elif user.target is aten.add.Tensor:
            others = [each for each in user.args if each is not gradient]
            if others:
                user.replace_all_uses_with(others[0])  # type: ignore[arg-type]
            else:  # It is added to itself.
                _drop(user)
                continue
            user.graph.erase_node(user)
        else:
            _drop(user)
    gradient.graph.erase_node(gradient)


def _returned(output: fx.Node) -> tuple[Any, ...]:
    (found,) = output.args
    assert isinstance(found, (tuple, list))
    return tuple(found)
