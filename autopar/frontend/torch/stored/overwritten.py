"""Parameters that `forward` overwrites without a gradient, as weights that it clips.

`weight.data.clamp_(-1, 1)` changes a parameter before it is used. Autograd doesn't see it: the
gradient is that of the new content, and the optimizer goes on from there. Torch's tracing treats
each new content of a parameter as one more result, whose gradient it asks for. Where that is handed
on to the parameter as it is, the write had none of its own, and nobody gives it one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from autopar.base.errors import InvalidInputError

aten = torch.ops.aten

_COPIES = (aten.alias.default, aten.clone.default, aten.detach.default)


def _rewritten(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Writes what is assigned to `tensor.data` into the tensor: tracing would drop it."""
    old, new = args
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise InvalidInputError(
            f"forward assigns {_described(new)} to .data of a tensor, which is"
            f" {_described(old)}: make a new tensor"
        )
    return old.detach().copy_(new.detach())


REWRITES = {Tensor.data.__set__: _rewritten}  # type: ignore[attr-defined]


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def drop_tangent(tangent: fx.Node) -> bool:
    """Takes the gradient of a parameter's new content out of a joint graph, if it has none.

    What the backward pass reads of an earlier content is the new one here, as in PyTorch, where
    both are in one place.

    Args:
        tangent: The placeholder of the gradient.

    Returns:
        Whether the write had no gradient of its own.
    """
    if not _handed_on(tangent):
        return False
    _drop(tangent)
    return True


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
