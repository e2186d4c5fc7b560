"""Tensors of the batch that `forward` writes to: callers find in theirs what PyTorch leaves there.

A program writes to nothing that it is given. What `forward` would have written is one more result,
which is put into the tensors of the batch after the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.ir.memory.strides import extent
from autopar.ir.program import WRITTEN, Program
from autopar.runtime.ports.boxes import take
from autopar.runtime.ports.ports import port_box, user_inputs


class WritingBack:
    """Which inputs of a program `forward` writes to, and what it leaves there.

    Args:
        program: A rank's program.

    Attributes:
        sources: Names of the inputs, by the position of the output that is their new content.
    """

    def __init__(self, program: Program) -> None:
        self._ports = {port.name: port for port in user_inputs(program)}
        names = {port.user_label: name for name, port in self._ports.items()}
        self.sources = {
            at: names[port.user_label]
            for at, port in enumerate(program.signature.outputs)
            if port.role == WRITTEN
        }

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuses tensors that can't be written to as `forward` does.

        Args:
            tensors: Those of a batch, by value name.

        Raises:
            InvalidInputError: If there is one.
        """
        named = {self._ports[name].user_label: each for name, each in tensors.items()}
        check_writable([self._ports[name].user_label for name in self.sources.values()], named)

    def write(
        self, whole: Callable[[int], Tensor], tensors: Mapping[str, Tensor], *, local: bool = False
    ) -> None:
        """Writes to the tensors of a batch.

        Args:
            whole: Returns the global value of an output, by its position.
            tensors: Those of the batch, by value name, which were checked.
            local: Whether they are the rank's pieces.
        """
        for at, name in self.sources.items():
            content = whole(at)
            put(take(content, port_box(self._ports[name], {})) if local else content, tensors[name])


def put(content: Tensor, tensor: Tensor) -> None:
    """Writes to a tensor of a batch."""
    with torch.no_grad():
        tensor.copy_(content)


def check_writable(written: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
    """Refuses tensors of a batch that can't be written to as `forward` does.

    Args:
        written: Labels of those that it writes to.
        tensors: All of them, by label.

    Raises:
        InvalidInputError: If elements of a written one share memory, or it shares memory with
            another tensor, which a program doesn't see written; or autograd minds.
    """
    for label in written:
        if problem := _problem(tensors[label]):
            raise InvalidInputError(f"forward writes to {label!r}, which {problem}")
    for label, (other, tensor) in product(written, tensors.items()):
        if label != other and _overlap(tensors[label], tensor):
            raise InvalidInputError(
                f"forward writes to {label!r}, which shares memory with {other!r}; hand over a"
                " clone() of one of them"
            )


def _problem(tensor: Tensor) -> str:
    if any(stride == 0 and size > 1 for stride, size in _steps(tensor)):
        return "has elements that share memory, as expand() makes them; hand over a clone() of it"
    if tensor.requires_grad and torch.is_grad_enabled():
        return "requires a gradient; hand over a detached clone() of it"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "is one of torch.inference_mode(), outside of it; hand over a clone() of it"
    return ""


def _steps(tensor: Tensor) -> list[tuple[int, int]]:
    return list(zip(tensor.stride(), tensor.shape, strict=True))


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have an element in common; columns of one table haven't."""
    if one.device != other.device:
        return False
    (start, end), (first, last) = map(_extent, (one, other))
    if start >= last or first >= end:
        return False
    alike = one.itemsize == other.itemsize
    return not alike or bool(torch.isin(*map(_addresses, (one, other))).any())


def _extent(tensor: Tensor) -> tuple[int, int]:
    return extent(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.itemsize)


def _addresses(tensor: Tensor) -> Tensor:
    """Returns the address of each element."""
    found = torch.tensor([tensor.data_ptr()])
    for stride, size in _steps(tensor):
        steps = torch.arange(size) * (stride * tensor.itemsize)
        found = (found[:, None] + steps).flatten()
    return found
