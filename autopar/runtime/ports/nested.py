"""Tensors in what ops take and return: one, or lists and tuples of them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yields the tensors in a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
