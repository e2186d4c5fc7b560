"""Lets fused steps of optimizers be traced: in functional form, on fake tensors.

A fused step is one kernel that updates parameters and their state in place. Functionalization
fails on its lists, and torch has no fake implementation of the overloads whose learning rate is a
tensor. Both are known here: a step is its functional form with the results copied back, and
results are like the operands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.library import Library

from autopar.ir.ops.elementwise.optimizer import FUSED_STEPS

STEPS: Mapping[str, str] = {
    f"{kind.split('.')[1]}_": kind.split(".")[1]
    for kind in FUSED_STEPS
    if hasattr(torch.ops.aten, kind.split(".")[1])
}
"""The functional form of each step in place, by torch's names."""


def run_functional(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Runs a step in place by way of its functional form.

    Args:
        name: One of `STEPS`.
        args: Its arguments by position.
        kwargs: Those by name.
    """
    packet = getattr(torch.ops.aten, STEPS[name])
    overload = packet.tensor_lr if isinstance(kwargs.get("lr"), Tensor) else packet.default
    names = [argument.name for argument in overload._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    in_place = getattr(torch.ops.aten, name)
    schema = getattr(in_place, overload._overloadname)._schema
    written = [given[argument.name] for argument in schema.arguments if argument.is_write]
    for olds, news in zip(written, overload(**given), strict=True):
        for old, new in zip(olds, news, strict=True):
            _replace(old, new)


def _replace(old: Tensor, new: Tensor) -> None:
    """Gives a tensor another content, for which functionalization needs no op."""
    if not isinstance(old, FunctionalTensor) or not isinstance(new, FunctionalTensor):
        old.copy_(new)
        return
    old.replace_(torch._from_functional_tensor(new.elem))
    old.commit_update()
    old.sync()


@contextlib.contextmanager
def traceable_steps() -> Iterator[None]:
    """Gives fused steps a fake implementation where torch has none."""
    with contextlib.ExitStack() as stack:
        library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        for name in dict.fromkeys(STEPS.values()):
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                if f"aten.{name}.{overload}" in FUSED_STEPS:
                    _add_fake(library, getattr(packet, overload))
        yield


def _add_fake(library: Library, step: torch._ops.OpOverload) -> None:
    if step.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta):
        return
    lists = len(step._schema.returns)

    def fake(*args: Any, **kwargs: Any) -> list[list[Tensor]]:
        return [[torch.empty_like(tensor) for tensor in args[at]] for at in range(lists)]

    library.impl(step, fake, "Meta")  # type: ignore[no-untyped-call]
