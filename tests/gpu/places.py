"""The device under test, and how it computes where results are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

PLACE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
"""A GPU if there is one."""

ON_GPU = PLACE.type == "cuda"

Note = Callable[[str, str], None]
"""Takes a figure and what it is measured by, for the table."""

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="torch finds no GPU here")


@contextmanager
def exact() -> Iterator[None]:
    """Lets kernels compute in the precision of their operands, and alike in every run.

    Convolutions of GPUs round their operands to 10 bits otherwise, and some kernels add up in the
    order in which threads arrive.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def halt() -> None:
    """Waits for all that the device was told."""
    if ON_GPU:
        torch.cuda.synchronize(PLACE)
