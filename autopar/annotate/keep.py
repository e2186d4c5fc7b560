"""`activations`: says what becomes of what a part of a model computes until the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count

import torch
from torch.fx.traceback import annotate

from autopar.annotate.notes import noted
from autopar.ir.activations import NOTE, check_choice

_NUMBERS = count()
"""Tells regions apart while a model is traced; a program numbers them anew."""


def activations(choice: str) -> AbstractContextManager[object]:
    """Returns a context manager for what is computed within; a decorator too.

        with activations("recompute"):
            x = self.block(x)

    Args:
        choice: `save`: it stays in the device's memory. `recompute`: the backward pass computes it
            again, but for what leaves the region, as `torch.utils.checkpoint` does. `offload`: it
            waits in the host's memory.

    Raises:
        AnnotationError: If the choice is none of these.
    """
    text = check_choice(choice, "activations")
    if torch.compiler.is_dynamo_compiling():
        marked: AbstractContextManager[object] = annotate({NOTE: text})
        return marked
    return _region(text)


@contextmanager
def _region(choice: str) -> Iterator[None]:
    with noted(NOTE, f"{choice} {next(_NUMBERS)}"):
        yield
