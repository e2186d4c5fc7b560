"""Refuses models that write into a tensor of which another parameter or buffer is a view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from autopar.base.errors import InvalidInputError
from autopar.frontend.torch.capture.fake import Stored, is_absent
from autopar.ir.memory.strides import extent


def refuse_overlaps(stored: Mapping[str, Stored], written: Iterable[str]) -> None:
    """Refuses to write to tensors that share memory with others: to a program each is its own.

    Args:
        stored: The model's tensors by name.
        written: Names of those that `forward` writes to.

    Raises:
        InvalidInputError: If one of them shares memory with another one.
    """
    for name in written:
        source = stored[name].source
        for other in stored.values():
            if other.name != name and _overlap(source, other.source):
                raise InvalidInputError(
                    f"forward writes to {name!r}, which shares memory with {other.name!r}; in a"
                    " program each has its own: make one of them of the other in forward"
                )


def _overlap(one: Tensor, other: Tensor) -> bool:
    if is_absent(one) or is_absent(other) or one.device != other.device:
        return False
    (start, end), (first, last) = _extent(one), _extent(other)
    return start < last and first < end


def _extent(tensor: Tensor) -> tuple[int, int]:
    return extent(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.itemsize)
