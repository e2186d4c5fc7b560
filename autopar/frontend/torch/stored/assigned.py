"""Buffers that `forward` assigns, as `self.cache = self.cache + x`, are written to instead.

Tracing sees what is written into a buffer; another tensor under its name it would drop.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from autopar.base.errors import InvalidInputError

Buffers = Mapping[str, Tensor | None]
"""By qualified name; None for one that is registered without a tensor."""


def registered_buffers(model: nn.Module) -> dict[str, Tensor | None]:
    """Returns all buffers of a module and those within it, each tied one under all its names."""
    return {
        f"{module}.{name}" if module else name: buffer
        for module, owner in model.named_modules(remove_duplicate=False)
        for name, buffer in owner._buffers.items()
    }


def write_assigned(model: nn.Module, before: Buffers) -> None:
    """Writes what `forward` assigned to buffers into what they were, and puts that back.

    Args:
        model: The module, after `forward` ran.
        before: Its buffers before.

    Raises:
        InvalidInputError: If a buffer is no tensor before or after, has another shape or dtype
            then, or is another buffer no more.
    """
    after = registered_buffers(model)
    changed = {name: old for name, old in before.items() if after.get(name) is not old}
    for name, old in changed.items():
        new = after.get(name)
        _check(name, old, new)
        assert old is not None
        assert new is not None
        for other, same in before.items():
            if same is old and after.get(other) is not new:
                raise InvalidInputError(
                    f"forward assigns another tensor to buffer {name!r}, which is {other!r} too"
                    " before it, and not after; write into it (copy_), or register two tensors"
                )
    for name, old in changed.items():
        owner, _, own = name.rpartition(".")
        buffers = model.get_submodule(owner)._buffers
        new = buffers[own]
        if new is not old and new is not None and old is not None:
            old.copy_(new)
        buffers[own] = old


def _check(name: str, old: Tensor | None, new: Tensor | None) -> None:
    types = [None if each is None else (each.dtype, tuple(each.shape)) for each in (old, new)]
    if None in types or types[0] != types[1]:
        was, becomes = map(_described, (old, new))
        raise InvalidInputError(
            f"forward makes {becomes} of buffer {name!r}, which is {was}: the next call would be"
            " another program; give the buffer its final shape and dtype before compiling, as one"
            " call of the model may do, and write into it"
        )


def _described(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
